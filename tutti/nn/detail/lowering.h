/// Pieces of what operators, losses and masks are lowered to. Not for users.
/// Thread rule: pure functions.
#pragma once

#include "tutti/hlo/ops.h"
#include "tutti/nn/ops.h"

namespace tutti::nn::detail {

template <class Pool>
hlo::WindowOptions window_of(const Pool& op, hlo::ImageOrder order) {
  return {.kernel_height = op.kernel,
          .kernel_width = op.kernel,
          .stride_height = op.stride,
          .stride_width = op.stride,
          .pad_height = op.padding,
          .pad_width = op.padding,
          .order = order};
}

/// Images: the largest of each kernel x kernel tile; what is left over at the right and the bottom
/// counts nowhere. The gradient goes to the first of several.
hlo::Value max_of_tiles(hlo::Value x, int64_t kernel, hlo::ImageOrder order);

/// Images: means of a grid of cells, as op::AdaptiveAvgPool2d says.
hlo::Value mean_of_cells(hlo::Value x, const Size2d& size, hlo::ImageOrder order);

/// x: images; w [inputs, outputs, kernel height, kernel width]. As op::ConvTranspose2d says.
struct ConvTransposeOptions {
  Size2d stride = 1, padding = 0, output_padding = 0;
  hlo::ImageOrder order = hlo::ImageOrder::channels_first;
};
hlo::Value conv_transpose2d(hlo::Value x, hlo::Value w, const ConvTransposeOptions& options);

/// Over the last dimension; a row's largest value is taken off first.
hlo::Value softmax(hlo::Value x);
hlo::Value log_softmax(hlo::Value x);

hlo::Value gelu(hlo::Value x, bool by_tanh);

/// log(1 + exp(x)), whose exponential never overflows. Not by a relu, whose slope at 0 is 0: this
/// one's is a half.
hlo::Value softplus(hlo::Value x);

/// Numbers in [0, 1) of this shape [rows, ...], those that nn::dropout_mask() compares.
///
/// key        uint32 [1, 2]: low half first
/// first_row  uint32 [2]: number of row 0 in the global batch, low half first
hlo::Value uniform_rows(const hlo::Shape& shape, hlo::Value key, hlo::Value first_row);

}  // namespace tutti::nn::detail
