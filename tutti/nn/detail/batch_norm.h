/// Batch norm of images in training, with channels innermost and the ReLU behind it as part of it.
/// Not for users. Both paths of a graph call it, so that both have the same bits.
///
/// Ioffe and Szegedy 2015, arXiv:1502.03167. For each channel, of n values of the batch:
///
///   mean, variance   by sums of x and x * x in double, row after row
///   y                (x - mean) / sqrt(variance + epsilon) * weight + bias
///   running          (1 - momentum) * running + momentum * (mean, variance * n / (n - 1))
///
/// Bits depend neither on the order of the images' memory nor on the number of threads, nor on the
/// instruction set. Thread rule: that of the module.
#pragma once

#include <torch/types.h>

#include "tutti/nn/dense.h"

namespace torch::nn {
class BatchNorm2dImpl;
}

namespace tutti::nn::detail {

/// Whether its parameters and statistics are float32 on the CPU, in contiguous memory.
bool has_plain_state(const torch::nn::BatchNorm2dImpl& layer);

/// Whether it is ours: has_plain_state(), in training, float32 on the CPU, of more than one value a
/// channel. Else it is LibTorch's.
bool batch_norm_takes(const at::Tensor& x, const torch::nn::BatchNorm2dImpl& layer);

struct NormedBatch {
  at::Tensor x, y;     ///< [batch, channels, height, width], channels innermost
  at::Tensor columns;  ///< [4, channels]: mean, scale, shift, 1 / deviation
};
/// `x` of batch_norm_takes(). Moves the layer's running statistics.
NormedBatch batch_norm_forward(const at::Tensor& x, torch::nn::BatchNorm2dImpl& layer,
                               Activation activation);

/// The same in two: the statistics, of which no y comes; and y plus `plus`, where it is defined,
/// cut off.
NormedBatch batch_statistics(const at::Tensor& x, torch::nn::BatchNorm2dImpl& layer);
at::Tensor apply_norm(const at::Tensor& x, const at::Tensor& columns, const at::Tensor& plus,
                      Activation activation);

/// Those not asked for are undefined.
struct NormGradients {
  at::Tensor x, weight, bias;
};
struct NormNeeds {
  bool x = true, weight = true, bias = true;
};
/// gradient: of y, in any order.
NormGradients batch_norm_backward(const at::Tensor& gradient, const at::Tensor& x,
                                  const at::Tensor& columns, Activation activation,
                                  NormNeeds needs);

/// The layer in training or evaluation, with gradients. x: channels innermost, where y is to have
/// them so in evaluation too.
at::Tensor batch_norm(const at::Tensor& x, torch::nn::BatchNorm2dImpl& layer);

}  // namespace tutti::nn::detail
