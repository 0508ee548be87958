/// Convolutions of images: forward and gradients, with weights in the order of memory that is
/// fastest (docs/design/layouts.md). Both paths of a graph call these, so that both have the same
/// bits. Not for users.
///
/// B images, C channels in, O channels out, G groups, H x W high and wide; a *tap* is one place of
/// a kernel. Thread rule: functions may be called from any thread.
#pragma once

#include <torch/types.h>

#include <cstdint>

#include "tutti/nn/ops.h"

namespace tutti::nn::detail {

/// Whether convolve() takes them: float32 on the CPU, not empty, outside of autocast. What it does
/// not take is the torch module's. The functions without autograd take the same, and bfloat16.
bool convolution_takes(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias);

/// What makes a convolution.
enum class ConvolutionWay : uint8_t {
  libtorch,  ///< its kernel
  dense,     ///< of one tap over small images: as a dense layer of the places
  by_taps,   ///< of images so small that most taps read padding: a product a place and line of taps
};
/// That of C x H x W images in float32; in bfloat16 it is LibTorch's. A rule of sizes alone, not of
/// B, so that it does not depend on who computes. docs/design/layouts.md.
ConvolutionWay way_of(const op::Conv2d& conv, int64_t height, int64_t width);

/// Of `x` [B, C, H, W] with channels innermost, `weight` [O, C / G, height, width] of any strides,
/// `bias` [O] or undefined: [B, O, H', W'], channels innermost. With gradients.
at::Tensor convolve(const op::Conv2d& conv, const at::Tensor& x, const at::Tensor& weight,
                    const at::Tensor& bias);

/// The same without autograd.
at::Tensor convolution_forward(const op::Conv2d& conv, const at::Tensor& x,
                               const at::Tensor& weight, const at::Tensor& bias);

/// Those not asked for are undefined. That of the input has channels innermost, that of the weight
/// torch's order, or channels innermost where the weight has them so.
struct ConvolutionGradients {
  at::Tensor x, weight, bias;
};
struct ConvolutionNeeds {
  bool x = true, weight = true, bias = true;
};
/// gradient [B, O, H', W'] of any strides: of what convolution_forward() gave. For the input's
/// alone the values of `weight` are read, and waited for.
ConvolutionGradients convolution_backward(const op::Conv2d& conv, const at::Tensor& gradient,
                                          const at::Tensor& x, const at::Tensor& weight,
                                          ConvolutionNeeds needs);

/// A weight, float32 or bfloat16, with the same sizes and values and channels innermost; the weight
/// itself where it is so, or where both orders are the same memory. And back in torch's order, with
/// torch's strides in dimensions of one element, too.
at::Tensor with_channels_innermost(const at::Tensor& weight);
at::Tensor in_torchs_order(const at::Tensor& weight);

}  // namespace tutti::nn::detail
