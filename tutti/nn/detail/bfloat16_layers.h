/// Layers of bfloat16 values that are faster by kernels of ours than by LibTorch's: attention by
/// products in bfloat16, GELU. For the plan, below autograd. Not for users.
/// Thread rule: functions may be called from any thread.
#pragma once

#include <torch/types.h>

#include "tutti/base/cpu_variant.h"
#include "tutti/nn/kernels/bfloat16.h"

namespace tutti::nn::detail {

const Bfloat16Kernels& bfloat16_kernels() noexcept;                    ///< of best_variant()
const Bfloat16Kernels& bfloat16_kernels(CpuVariant variant) noexcept;  ///< a runnable one

/// x, gradient: bfloat16, of one shape and order in memory; so is what they give. By tanh.
at::Tensor gelu_in_bfloat16(const at::Tensor& x);
at::Tensor gelu_gradient_in_bfloat16(const at::Tensor& gradient, const at::Tensor& x);

/// attend() (attention.h) of bfloat16 x [batch, length, 3 features]; softmax in float32, of scores
/// that were rounded to bfloat16.
at::Tensor attend_in_bfloat16(const at::Tensor& x, int64_t heads, bool causal);

/// That of x, from the gradient [batch, length, features] of what attend_in_bfloat16() gave: the
/// softmax is computed again, so that nothing is kept of it.
at::Tensor attend_gradient_in_bfloat16(const at::Tensor& gradient, const at::Tensor& x,
                                       int64_t heads, bool causal);

}  // namespace tutti::nn::detail
