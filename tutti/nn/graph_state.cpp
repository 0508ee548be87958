#include "tutti/nn/detail/graph_state.h"

#include <utility>

#include "tutti/nn/detail/operators.h"

namespace tutti::nn::detail {

using torch::nn::Module;

std::pair<Module*, std::string> place_of(Module& root, const std::string& name) {
  Module* group = &root;
  size_t begin = 0;
  for (size_t dot = name.find('.'); dot != std::string::npos; dot = name.find('.', begin)) {
    const std::string part = name.substr(begin, dot - begin);
    const std::shared_ptr<Module> child =
        group->named_children().contains(part)
            ? group->named_children()[part]
            : group->register_module(part, std::make_shared<Module>(part));
    group = child.get();
    begin = dot + 1;
  }
  return {group, name.substr(begin)};
}

LayerState draw_state(const Graph& graph, size_t place) {
  const nn::Node& node = graph.nodes()[place];
  LayerState state = operator_of(node.op).state(node.op, static_cast<int>(place));
  if (state.parameter.defined()) state.parameter.set_requires_grad(true);
  for (const Parameter& parameter : node.parameters) {
    if (!parameter.frozen) continue;
    const at::Tensor own =
        state.module ? state.module->named_parameters()[parameter.name] : state.parameter;
    own.set_requires_grad(false);
  }
  return state;
}

void register_state(Module& root, const std::string& name, const LayerState& state) {
  if (!state.module && !state.parameter.defined()) return;
  const auto [group, last] = place_of(root, name);
  if (state.module) group->register_module(last, state.module);
  if (state.parameter.defined())
    group->register_parameter(last, state.parameter, state.parameter.requires_grad());
}

void register_groups(Module& root, const std::string& name) { place_of(root, name); }

}  // namespace tutti::nn::detail
