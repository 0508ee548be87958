/// In which order the channels of images lie in memory, on the CPU: layers' kernels, and so their
/// bits, depend on it, and it is lost where a value goes to another stage. Not for users. Thread
/// rule: pure functions.
#pragma once

#include <torch/types.h>

#include <vector>

#include "tutti/nn/graph.h"

namespace tutti::parallel::detail {

/// Whether channels are innermost in a node's value, and in its gradient, when nn::GraphModule
/// computes the whole graph; false for what is no image.
struct ChannelsInnermost {
  bool value = false;
  bool gradient = false;
};
std::vector<ChannelsInnermost> channels_innermost(const nn::Graph& graph);

/// The same elements, differentiable, in this order; `x` itself where that is its own or it is no
/// image of the CPU.
at::Tensor in_order(const at::Tensor& x, bool channels_innermost);

/// x, whose gradient is put into this order when it arrives.
at::Tensor with_gradient_in_order(const at::Tensor& x, bool channels_innermost);

}  // namespace tutti::parallel::detail
