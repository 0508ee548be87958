/// What a graph's layers own, with initial values. Not for users.
/// Thread rule: that of LibTorch's default generator, and of the module.
#pragma once

#include <torch/nn/module.h>
#include <torch/types.h>

#include <memory>
#include <string>
#include <utility>

#include "tutti/nn/graph.h"

namespace tutti::nn::detail {

/// A module, or a layer that is one parameter, or neither.
struct LayerState {
  std::shared_ptr<torch::nn::Module> module{};
  at::Tensor parameter{};
};

/// Of the node at `place`, drawn from LibTorch's default generator; frozen parameters require no
/// gradient. A dropout layer is numbered by the place.
LayerState draw_state(const Graph& graph, size_t place);

/// In `root` under the dotted name of the layer, in groups of modules that are made on the way.
/// Nothing for a layer without state.
void register_state(torch::nn::Module& root, const std::string& name, const LayerState& state);

/// The module in which something with this dotted name lies, made on the way with its groups, and
/// the name there.
std::pair<torch::nn::Module*, std::string> place_of(torch::nn::Module& root,
                                                    const std::string& name);

/// Makes the groups alone: they stand in the order in which they were first named.
void register_groups(torch::nn::Module& root, const std::string& name);

}  // namespace tutti::nn::detail
