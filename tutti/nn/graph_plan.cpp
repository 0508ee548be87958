#include "tutti/nn/detail/graph_plan.h"

#include <ATen/autocast_mode.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/nn/modules/conv.h>

#include <algorithm>
#include <type_traits>
#include <utility>

#include "tutti/base/error.h"
#include "tutti/nn/detail/layers.h"
#include "tutti/nn/detail/operators.h"
#include "tutti/sync/detail/gradient_listener.h"

namespace tutti::nn::detail {
namespace {

/// The parameters of a layer; undefined where it has none.
struct Weights {
  at::Tensor weight, bias;
};
Weights weights_of(const GraphStep& step) {
  if (std::holds_alternative<op::Conv2d>(step.op)) {
    const auto& conv = *static_cast<const torch::nn::Conv2dImpl*>(step.module);
    return {conv.weight, conv.bias};
  }
  if (std::holds_alternative<op::Linear>(step.op)) {
    const auto& linear = *static_cast<const LinearImpl*>(step.module);
    return {linear.weight, linear.bias};
  }
  return {};
}

bool is_trained(const at::Tensor& parameter) {
  return parameter.defined() && parameter.requires_grad();
}

constexpr int64_t kMostOfAByte = 15;  // side of a window whose places fit one

/// Whether a pool and the ReLU behind it can be one kernel.
bool is_tiling(const op::MaxPool2d& pool) {
  return pool.kernel == pool.stride && pool.padding == 0 && pool.kernel <= kMostOfAByte;
}

// Undefined where nothing has come yet.
void add_to(at::Tensor& sum, const at::Tensor& gradient) {
  sum = sum.defined() ? sum + gradient : gradient;
}

// Version counters are how autograd finds that a value which a backward pass needs was written to.
struct Guarded {
  at::Tensor tensor;
  int64_t version;
};

}  // namespace

at::Tensor keep_input(const PlannedLayer& layer, GraphStep::Values& values, KeptOfLayer& kept) {
  kept.x = values[0];
  return layer.step->run(values);
}

at::Tensor keep_output(const PlannedLayer& layer, GraphStep::Values& values, KeptOfLayer& kept) {
  return kept.y = layer.step->run(values);
}

at::Tensor GraphPlan::forward(const Layer& layer, GraphStep::Values& values, Kept& kept) {
  return layer.passes ? values[0] : operator_of(layer.op).plan.forward(layer, values, kept);
}

LayerGradients GraphPlan::backward(const Layer& layer, const Kept& kept, const at::Tensor& gradient,
                                   bool weights_first) {
  if (layer.passes) return {.input = gradient};
  return operator_of(layer.op).plan.backward(layer, kept, gradient, weights_first);
}

at::Tensor GraphPlan::input_gradient(const Kept& kept, const at::Tensor& gradient,
                                     const at::Tensor& of_sum) {
  return shaped_as(gradient, dense_input_gradient(of_sum, kept.weight));
}

GraphPlan::GraphPlan(const Graph& graph, const std::vector<GraphStep>& steps) {
  const auto& nodes = graph.nodes();
  std::vector<int> readers(steps.size());
  const auto refuse = [&](size_t i, const std::string& why) {
    if (unknown_.empty())
      unknown_ = fmt::format("{} \"{}\"{}", kind_of(nodes[i].op), nodes[i].name, why);
  };
  for (size_t i = 0; i < steps.size(); ++i) {
    Layer layer{.step = &steps[i],
                .op = steps[i].op,
                .activation = steps[i].activation,
                .passes = steps[i].passes};
    for (const auto& input : steps[i].inputs) {
      layer.inputs.push_back(input.node);
      ++readers[static_cast<size_t>(input.node)];
    }
    if (operator_of(layer.op).plan.backward == nullptr) refuse(i, "");
    for (size_t earlier = 0; earlier < i; ++earlier)
      if (steps[i].module != nullptr && steps[i].module == steps[earlier].module)
        refuse(i, ", which is applied twice");
    layers_.push_back(std::move(layer));
  }
  for (const Port& port : graph.inputs()) inputs_.push_back(port.node);
  for (const Port& port : graph.outputs()) {
    outputs_.push_back(port.node);
    ++readers[static_cast<size_t>(port.node)];
    if (layers_[static_cast<size_t>(port.node)].inputs.empty())
      refuse(static_cast<size_t>(port.node), ", which is an output, too");
  }
  // Of three gradients the sum depends on their order, which is autograd's own.
  for (size_t i = 0; i < steps.size(); ++i)
    if (readers[i] > 2) refuse(i, ", which more than two layers read");
  for (size_t i = 0; i < steps.size(); ++i) {
    if (!std::holds_alternative<op::Relu>(steps[i].op) || steps[i].passes) continue;
    const auto input = static_cast<size_t>(layers_[i].inputs[0]);
    const auto* pool = std::get_if<op::MaxPool2d>(&layers_[input].op);
    if (pool == nullptr || !is_tiling(*pool) || readers[input] != 1) continue;
    layers_[input].activation = Activation::relu;
    layers_[i].passes = true;
  }
  for (size_t i = 0; i < layers_.size(); ++i) {
    Layer& layer = layers_[i];
    layer.keeps_output =
        operator_of(layer.op).plan.from_output || layer.activation != Activation::none;
    // What gives its input's memory gives what others may read of that.
    if (layer.passes || std::holds_alternative<op::Flatten>(layer.op)) {
      const auto input = static_cast<size_t>(layer.inputs[0]);
      layer.keeps_output = layers_[input].keeps_output || readers[input] > 1;
    }
  }
  for (size_t i = 0; i < layers_.size(); ++i)
    for (const int input : layers_[i].inputs)
      layers_[static_cast<size_t>(input)].keeps_output = true;
}

bool GraphPlan::takes(at::TensorList inputs) const {
  if (!unknown_.empty() || at::autocast::is_autocast_enabled(at::kCPU)) return false;
  for (const at::Tensor& input : inputs)
    if (!input.is_cpu() || input.scalar_type() != at::kFloat || input.layout() != at::kStrided ||
        input.requires_grad() || input.is_inference() || input.numel() == 0 ||
        input.size(0) != inputs[0].size(0))
      return false;
  bool trained = false;
  c10::SmallVector<const at::TensorImpl*, 32> seen;  // each is to get its gradient once
  for (const Layer& layer : layers_) {
    const Weights own = weights_of(*layer.step);
    for (const at::Tensor& parameter : {own.weight, own.bias}) {
      if (!parameter.defined()) continue;
      if (!parameter.is_cpu() || parameter.scalar_type() != at::kFloat || !parameter.is_leaf() ||
          parameter.layout() != at::kStrided)
        return false;
      if (std::holds_alternative<op::Linear>(layer.op) && !parameter.is_contiguous()) return false;
      trained |= parameter.requires_grad();
      const auto* const known = parameter.unsafeGetTensorImpl();
      if (std::find(seen.begin(), seen.end(), known) != seen.end()) return false;
      seen.push_back(known);
    }
  }
  return trained;
}

using torch::autograd::Node;
using torch::autograd::variable_list;

/// The backward pass of one forward pass.
struct PlannedBackward final : tutti::detail::TellingNode {
  std::shared_ptr<const GraphPlan> plan;
  std::vector<GraphPlan::Kept> kept;  // by layer; empty: it was made, and is not to be made again
  std::vector<Guarded> guarded;

  void release_variables() override {
    kept.clear();
    guarded.clear();
  }

  variable_list apply(variable_list&& of_outputs) override {
    require_unchanged();
    std::vector<at::Tensor> of_values(plan->layers_.size());
    for (size_t i = 0; i < of_outputs.size(); ++i)
      if (of_outputs[i].defined())
        add_to(of_values[static_cast<size_t>(plan->outputs_[i])], of_outputs[i]);
    variable_list of_parameters(num_outputs());
    const bool sends = listener != nullptr && listener->sends();
    size_t last = of_parameters.size();
    for (size_t i = plan->layers_.size(); i-- > 0;) {
      const GraphPlan::Layer& layer = plan->layers_[i];
      const GraphPlan::Kept& own = kept[i];
      at::Tensor gradient = std::move(of_values[i]);
      last -= size_t{own.needs_weight} + size_t{own.needs_bias};
      if (!gradient.defined() || !(own.needs_input || own.needs_weight || own.needs_bias)) continue;
      if (listener != nullptr) listener->go_on();
      auto of = GraphPlan::backward(layer, own, gradient, sends);
      if (own.needs_weight && !was_told(own.weight, of.weight))
        of_parameters[last] = std::move(of.weight);
      if (own.needs_bias && !was_told(own.bias, of.bias))
        of_parameters[last + size_t{own.needs_weight}] = std::move(of.bias);
      if (of.sum.defined()) of.input = GraphPlan::input_gradient(own, gradient, of.sum);
      for (const int input : layer.inputs)
        if (own.needs_input) add_to(of_values[static_cast<size_t>(input)], of.input);
    }
    return of_parameters;
  }

  bool was_told(const at::Tensor& parameter, const at::Tensor& gradient) const {
    return listener != nullptr && listener->take(parameter, gradient);
  }

  void require_unchanged() const {
    if (kept.empty())
      throw UsageError(
          "nn::Graph: a second backward() over one forward pass; call backward() with retain_graph "
          "in the first");
    if (at::GradMode::is_enabled())
      throw UsageError(
          "nn::Graph: a backward pass that makes a graph (create_graph) is autograd's: call "
          "set_planned(false) on the module");
    for (const Guarded& guard : guarded)
      if (guard.tensor._version() != guard.version)
        throw UsageError(
            fmt::format("nn::Graph: a tensor of shape {} that backward() needs was modified by an "
                        "inplace operation after the forward pass: it is at version {}, expected "
                        "version {}",
                        c10::str(guard.tensor.sizes()), guard.tensor._version(), guard.version));
  }
};

namespace {

// Another tensor of the same memory and version: a node must not hold what holds it.
at::Tensor same_memory(const at::Tensor& value) {
  return at::Tensor(value.unsafeGetTensorImpl()->shallow_copy_and_detach(
      value.unsafeGetTensorImpl()->version_counter(), /*allow_tensor_metadata_change=*/true));
}

// Nodes are counted by std::shared_ptr or by c10::intrusive_ptr, as LibTorch's version has it.
using NodePointer = decltype(torch::autograd::Edge::function);

template <class Made, class Pointer>
auto make_node() {
  if constexpr (std::is_same_v<Pointer, std::shared_ptr<Node>>)
    return std::make_shared<Made>();
  else
    return c10::make_intrusive<Made>();
}

}  // namespace

std::vector<at::Tensor> GraphPlan::run(at::TensorList given) const {
  auto node = make_node<PlannedBackward, NodePointer>();
  node->plan = shared_from_this();
  node->kept.resize(layers_.size());
  std::vector<at::Tensor> values(layers_.size());
  torch::autograd::edge_list edges;
  const auto guard = [&](const at::Tensor& tensor) {
    node->guarded.push_back({tensor, tensor._version()});
  };
  std::vector<uint8_t> flows(layers_.size());  // whether a gradient of this value is needed
  {
    const at::AutoDispatchBelowADInplaceOrView below;
    for (size_t i = 0; i < given.size(); ++i) {
      values[static_cast<size_t>(inputs_[i])] = given[i];
      guard(given[i]);
    }
    GraphStep::Values taken;
    for (size_t i = 0; i < layers_.size(); ++i) {
      const Layer& layer = layers_[i];
      if (layer.inputs.empty()) continue;
      Kept& kept = node->kept[i];
      const Weights own = weights_of(*layer.step);
      kept.needs_weight = is_trained(own.weight);
      kept.needs_bias = is_trained(own.bias);
      kept.weight = own.weight;
      if (kept.needs_bias) kept.bias = own.bias;
      for (const auto& [input, last_use] : layer.step->inputs) {
        at::Tensor& value = values[static_cast<size_t>(input)];
        kept.needs_input |= flows[static_cast<size_t>(input)] != 0;
        taken.push_back(last_use ? std::move(value) : value);
      }
      flows[i] = kept.needs_input || kept.needs_weight || kept.needs_bias;
      values[i] = forward(layer, taken, kept);
      taken.clear();
      if (kept.needs_weight) edges.push_back(torch::autograd::impl::gradient_edge(own.weight));
      if (kept.needs_bias) edges.push_back(torch::autograd::impl::gradient_edge(own.bias));
      if (kept.needs_input && own.weight.defined()) guard(own.weight);
    }
  }
  node->set_next_edges(std::move(edges));
  std::vector<at::Tensor> outputs;
  for (const int output : outputs_) {
    const at::Tensor& value = values[static_cast<size_t>(output)];
    if (layers_[static_cast<size_t>(output)].keeps_output) guard(value);
    outputs.push_back(same_memory(value));
    if (flows[static_cast<size_t>(output)] != 0)
      torch::autograd::set_history(outputs.back(), NodePointer(node));
  }
  return outputs;
}

}  // namespace tutti::nn::detail
