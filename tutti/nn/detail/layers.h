/// Layers without autograd: forward and gradients by kernels of ours and LibTorch's products. Not
/// for users. Both paths of a graph call these, so that both have the same bits.
///
/// Tensors are float32, on the CPU, contiguous where not said otherwise. Thread rule: pure
/// functions.
#pragma once

#include <torch/types.h>

#include "tutti/base/cpu_variant.h"
#include "tutti/nn/dense.h"
#include "tutti/nn/kernels/layers.h"

namespace tutti::nn::detail {

/// The table of an instruction set that runnable_variants() names.
const LayerKernels& layer_kernels(CpuVariant variant) noexcept;
/// That of best_variant().
const LayerKernels& layer_kernels();

/// Whether dense_forward() takes them: else dense() is torch::linear.
bool dense_takes(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias);

/// x [rows, features], weight [units, features]; gives [rows, units], contiguous.
at::Tensor dense_forward(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                         Activation activation);

/// Those not asked for are undefined.
struct DenseGradients {
  at::Tensor x, weight, bias;
};
struct DenseNeeds {
  bool x = true, weight = true, bias = true;
};

/// gradient [rows, units]: of the layer's output y, which is read where `activation` is one.
DenseGradients dense_backward(const at::Tensor& gradient, const at::Tensor& x,
                              const at::Tensor& weight, const at::Tensor& y, Activation activation,
                              DenseNeeds needs);

}  // namespace tutti::nn::detail
