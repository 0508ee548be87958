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

namespace torch::autograd {
struct Node;
}

namespace tutti::nn::detail {

/// The table of an instruction set that runnable_variants() names.
const LayerKernels& layer_kernels(CpuVariant variant) noexcept;
/// That of best_variant().
const LayerKernels& layer_kernels();

/// What decides which kernel multiplies (dense_kernel.h).
enum class CpuMaker : uint8_t { intel, amd, other };
struct DenseFacts {
  bool onednn = false;  ///< whether LibTorch carries its product
  bool mkl = false;     ///< whether its BLAS is MKL
  CpuMaker maker = CpuMaker::other;
  CpuVariant variant = CpuVariant::baseline;  ///< the best that the processor runs
};
DenseKernel fastest_kernel(const DenseFacts& facts);

/// `x` with its last dimension as rows, contiguous, and rows of that many in the shape of `x`
/// again.
at::Tensor rows_of(const at::Tensor& x);
at::Tensor shaped_as(const at::Tensor& x, const at::Tensor& rows);

/// Whether dense_forward() takes them: else dense() is torch::linear.
bool dense_takes(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias);

/// x [rows, features], weight [units, features]; gives [rows, units], contiguous. All of them are
/// float32, or all bfloat16; of the gradients that of the bias is float32 then, too.
at::Tensor dense_forward(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                         Activation activation);

/// Those not asked for are undefined.
struct DenseGradients {
  at::Tensor x, weight, bias;
  at::Tensor sum;  ///< of x weight' + bias, before the activation; always
};
struct DenseNeeds {
  bool x = true, weight = true, bias = true;
};

/// gradient [rows, units]: of the layer's output y, which is read where `activation` is one.
DenseGradients dense_backward(const at::Tensor& gradient, const at::Tensor& x,
                              const at::Tensor& weight, const at::Tensor& y, Activation activation,
                              DenseNeeds needs);

/// That of the input, or of the weight, alone; `of_sum` is DenseGradients::sum. The bits of
/// dense_backward().
at::Tensor dense_input_gradient(const at::Tensor& of_sum, const at::Tensor& weight);
at::Tensor dense_weight_gradient(const at::Tensor& of_sum, const at::Tensor& x);

/// relu(a + b), of one shape, in the order that LibTorch gives their sum.
at::Tensor add_relu(const at::Tensor& a, const at::Tensor& b);

/// Whether a node of autograd is dense()'s; that edge of it leads to the weight.
bool is_dense(const torch::autograd::Node& node);
constexpr size_t kWeightOfDense = 1;

}  // namespace tutti::nn::detail
