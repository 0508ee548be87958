#include "tutti/nn/detail/graph_state.h"

#include <torch/nn/init.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/normalization.h>

#include <utility>

#include "tutti/nn/attention.h"
#include "tutti/nn/dense.h"
#include "tutti/nn/dropout.h"
#include "tutti/nn/sync_batch_norm.h"

namespace tutti::nn::detail {
namespace {

using torch::nn::Module;

/// The torch module of a layer, or null for layers without state. `place` numbers dropout layers.
struct Maker {
  int place;

  std::shared_ptr<Module> operator()(const op::Conv2d& op) const {
    return std::make_shared<torch::nn::Conv2dImpl>(
        torch::nn::Conv2dOptions(op.in_channels, op.out_channels,
                                 {op.kernel.height, op.kernel.width})
            .stride(op.stride)
            .padding({op.padding.height, op.padding.width})
            .groups(op.groups)
            .bias(op.bias));
  }
  std::shared_ptr<Module> operator()(const op::Linear& op) const {
    auto linear = std::make_shared<LinearImpl>(
        torch::nn::LinearOptions(op.in_features, op.units).bias(op.bias));
    if (op.initial_deviation > 0) {
      torch::nn::init::normal_(linear->weight, 0, op.initial_deviation);
      if (op.bias) torch::nn::init::zeros_(linear->bias);
    }
    return linear;
  }
  std::shared_ptr<Module> operator()(const op::Embedding& op) const { return embedding(op); }
  std::shared_ptr<Module> operator()(const op::TiedLinear& op) const { return embedding(op); }
  std::shared_ptr<Module> operator()(const op::BatchNorm2d& op) const {
    const auto options =
        torch::nn::BatchNormOptions(op.channels).eps(op.epsilon).momentum(op.momentum);
    if (op.synchronized) return std::make_shared<SyncBatchNormImpl>(options);
    return std::make_shared<torch::nn::BatchNorm2dImpl>(options);
  }
  std::shared_ptr<Module> operator()(const op::LayerNorm& op) const {
    return std::make_shared<torch::nn::LayerNormImpl>(
        torch::nn::LayerNormOptions({op.features}).eps(op.epsilon));
  }
  std::shared_ptr<Module> operator()(const op::SelfAttention& op) const {
    return std::make_shared<SelfAttentionImpl>(op.features, op.heads);
  }
  std::shared_ptr<Module> operator()(const op::Dropout& op) const {
    return std::make_shared<DropoutImpl>(DropoutOptions{op.probability, place});
  }
  template <class Stateless>
  std::shared_ptr<Module> operator()(const Stateless&) const {
    return nullptr;
  }

 private:
  // Of either, as the first that is applied makes it for both.
  template <class Op>
  static std::shared_ptr<Module> embedding(const Op& op) {
    return std::make_shared<torch::nn::EmbeddingImpl>(
        torch::nn::EmbeddingOptions(op.vocabulary, op.features)
            ._weight(torch::randn({op.vocabulary, op.features}) * op.initial_deviation));
  }
};

/// The initial value of a layer that is one parameter, or an undefined tensor for all others.
struct ParameterMaker {
  at::Tensor operator()(const op::PrependToken& op) const {
    return torch::zeros({1, 1, op.features});
  }
  at::Tensor operator()(const op::AddPosition& op) const {
    return torch::randn({1, op.length, op.features}) * 0.02;
  }
  template <class Other>
  at::Tensor operator()(const Other&) const {
    return {};
  }
};

/// The group of modules in which something with this dotted name lies, made on the way, and the
/// name there.
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

LayerState drawn(const Op& op, size_t place) {
  if (auto module = std::visit(Maker{static_cast<int>(place)}, op)) return {.module = module};
  at::Tensor value = std::visit(ParameterMaker{}, op);
  if (value.defined()) value.set_requires_grad(true);
  return {.parameter = std::move(value)};
}

}  // namespace

LayerState draw_state(const Graph& graph, size_t place) {
  const nn::Node& node = graph.nodes()[place];
  LayerState state = drawn(node.op, place);
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
