/// nn::SelfAttention: multi-head attention of sequences to themselves; and attend(), what it does
/// between its dense layers.
///
/// Vaswani et al. 2017, arXiv:1706.03762, section 3.2.2, with q = k = v = x.
/// Parameters have the names, shapes and initial values of torch::nn::MultiheadAttention, whose
/// state dict loads. Thread rule: that of a torch module.
#pragma once

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include "tutti/nn/dense.h"

namespace tutti::nn {

/// softmax(q k' / sqrt(features / heads)) v of each head.
///
/// x       [batch, length, 3 * features]: queries, keys and values side by side, of each the heads
/// causal  places see themselves and those before them
///
/// Gives [batch, length, features].
at::Tensor attend(const at::Tensor& x, int64_t heads, bool causal);

namespace detail {

/// What attend() computes on the way, on the CPU, without autograd: of float32, or of bfloat16, of
/// which y alone is kept.
struct Attended {
  at::Tensor y;
  at::Tensor of_heads;  ///< [batch, heads, length, features / heads]
  at::Tensor log_sums;  ///< of the exponentials that each place adds up
};
Attended attend_forward(const at::Tensor& x, int64_t heads, bool causal);
/// The gradient of x, contiguous; `of` is without y.
at::Tensor attend_backward(const at::Tensor& gradient, const Attended& of, const at::Tensor& x,
                           int64_t heads, bool causal);

}  // namespace detail

class SelfAttentionImpl : public torch::nn::Module {
 public:
  /// Throws UsageError unless 1 <= heads, and heads divides features.
  SelfAttentionImpl(int64_t features, int64_t heads);

  /// x: [batch, length, features], floating; returns the same shape.
  at::Tensor forward(const at::Tensor& x);

  /// Of q, k, v, one below the other: [3 * features, features]. What forward() reads.
  at::Tensor& in_proj_weight() noexcept { return in_proj_weight_; }

  /// in_proj_weight, in_proj_bias, out_proj.weight, out_proj.bias.
  c10::SmallVector<at::Tensor, 4> weights() const {
    return {in_proj_weight_, in_proj_bias_, out_proj_->weight, out_proj_->bias};
  }

 private:
  int64_t heads_;
  at::Tensor in_proj_weight_;
  at::Tensor in_proj_bias_;
  Linear out_proj_{nullptr};
};

/// Holder, as torch::nn's modules have one: nn::SelfAttention attend(64, 4); attend(x).
TORCH_MODULE(SelfAttention);

}  // namespace tutti::nn
