/// What Model makes of anything that a user's factory returns. Not for users.
/// Thread rule: that of the module.
#pragma once

#include <torch/nn/module.h>

#include <concepts>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "tutti/nn/graph_module.h"

namespace tutti::detail {

using Tensors = std::vector<at::Tensor>;

/// A model without its type.
struct ErasedModel {
  std::shared_ptr<torch::nn::Module> module;
  /// One tensor [batch, ...] for each input gives one for each output, all of one batch. Throws
  /// UsageError for another number of inputs, and what the module throws.
  std::function<Tensors(at::TensorList)> forward;
  /// Of a graph, whose module is yet to be made: whole(), or parts of it.
  std::optional<nn::Graph> graph{};
};

/// UsageError for more than one, which this module's forward cannot take.
void require_one_input(at::TensorList inputs);

/// What forward gave, as a list: a model with one output may give the tensor itself.
inline Tensors as_tensors(at::Tensor tensor) { return {std::move(tensor)}; }
inline Tensors as_tensors(Tensors tensors) { return tensors; }

/// What `module` gives for `inputs`. One tensor is tried first: the templated forward of
/// torch::nn::Sequential claims to take anything.
template <class Module>
Tensors forward_of(Module& module, at::TensorList inputs) {
  if constexpr (requires { module.forward_all(inputs); }) {  // of a graph, or an export
    return module.forward_all(inputs);
  } else if constexpr (requires(at::Tensor x) { as_tensors(module.forward(x)); }) {
    require_one_input(inputs);
    return as_tensors(module.forward(inputs[0]));
  } else {
    static_assert(
        requires(const Tensors& all) { as_tensors(module.forward(all)); },
        "a model needs a forward that takes a Tensor or a const std::vector<Tensor>&, and gives a "
        "Tensor or a std::vector<Tensor>");
    return as_tensors(module.forward(inputs.vec()));
  }
}

/// Made is an nn::Graph, a torch ModuleHolder (Sequential too), a shared_ptr to a module, or a
/// module, whose forward is one that forward_of() can call; what else it is does not compile. The
/// erased model shares the module with whoever else has it.
template <class Made>
ErasedModel erase(Made made) {  // NOLINT(performance-unnecessary-value-param): some are moved from
  if constexpr (std::same_as<Made, ErasedModel>) {
    return made;
  } else if constexpr (std::same_as<Made, nn::Graph>) {
    return {.module = nullptr, .forward = nullptr, .graph = std::move(made)};
  } else if constexpr (requires { made.ptr(); }) {
    return erase(made.ptr());
  } else if constexpr (requires { made.get(); }) {
    return {made, [made](at::TensorList inputs) { return forward_of(*made, inputs); }};
  } else {
    return erase(std::make_shared<Made>(std::move(made)));
  }
}

/// With a module.
inline ErasedModel with_module(ErasedModel model) {
  return model.graph ? erase(nn::make_module(*model.graph)) : model;
}

}  // namespace tutti::detail
