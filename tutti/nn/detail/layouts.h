/// In which order of dimensions a lowered graph keeps its images. Not for users.
///
/// Compilers have fast convolutions for images whose channels come last, and bring all others into
/// that order and back again, around each one. So what a convolution gives stays so until an
/// operator reads a sample's elements in their order, or the graph gives it away.
/// Thread rule: pure functions.
#pragma once

#include <vector>

#include "tutti/hlo/ops.h"
#include "tutti/nn/ops.h"

namespace tutti::nn::detail {

/// What a node gives. All but images have channels_first.
struct Ordered {
  hlo::Value value;
  hlo::ImageOrder order = hlo::ImageOrder::channels_first;
};

/// Transposed where it has the other order.
hlo::Value in_order(const Ordered& image, hlo::ImageOrder order);

/// The order in which an operator takes all of `inputs`; an image that it gives has that too.
hlo::ImageOrder order_of(const Op& op, const std::vector<Ordered>& inputs);

}  // namespace tutti::nn::detail
