#include "tutti/nn/attention.h"

#include <ATen/autocast_mode.h>
#include <fmt/format.h>
#include <torch/nn/init.h>
#include <torch/types.h>

#include "tutti/base/error.h"
#include "tutti/nn/detail/bfloat16_layers.h"

namespace tutti::nn {

namespace {

/// [batch, length, 3, heads, width] as three times [batch, heads, length, width].
at::Tensor parts_of(const at::Tensor& x, int64_t heads) {
  return x.reshape({x.size(0), x.size(1), 3, heads, x.size(2) / 3 / heads})
      .permute({2, 0, 3, 1, 4});
}
/// Heads side by side: of [batch, heads, length, width] [batch, length, features].
at::Tensor side_by_side(const at::Tensor& of_heads) {
  return of_heads.transpose(1, 2).reshape(
      {of_heads.size(0), of_heads.size(2), of_heads.size(1) * of_heads.size(3)});
}

bool takes_flash(const at::Tensor& x) {
  return x.is_cpu() && x.scalar_type() == at::kFloat && x.numel() > 0 &&
         !at::autocast::is_autocast_enabled(at::kCPU);
}

}  // namespace

at::Tensor attend(const at::Tensor& x, int64_t heads, bool causal) {
  const at::Tensor parts = parts_of(x, heads);
  // By name, so that the planned step has the same one.
  if (takes_flash(x))
    return side_by_side(std::get<0>(at::_scaled_dot_product_flash_attention_for_cpu(
        parts[0], parts[1], parts[2], /*dropout_p=*/0.0, causal)));
  return side_by_side(at::scaled_dot_product_attention(parts[0], parts[1], parts[2],
                                                       /*attn_mask=*/{}, /*dropout_p=*/0.0,
                                                       causal));
}

detail::Attended detail::attend_forward(const at::Tensor& x, int64_t heads, bool causal) {
  if (x.scalar_type() == at::kBFloat16) return {attend_in_bfloat16(x, heads, causal), {}, {}};
  const at::Tensor parts = parts_of(x, heads);
  auto [of_heads, log_sums] = at::_scaled_dot_product_flash_attention_for_cpu(
      parts[0], parts[1], parts[2], /*dropout_p=*/0.0, causal);
  return {side_by_side(of_heads), of_heads, log_sums};
}

at::Tensor detail::attend_backward(const at::Tensor& gradient, const Attended& of,
                                   const at::Tensor& x, int64_t heads, bool causal) {
  if (x.scalar_type() == at::kBFloat16)
    return attend_gradient_in_bfloat16(gradient, x, heads, causal);
  const at::Tensor parts = parts_of(x, heads);
  const int64_t width = of.of_heads.size(3);
  const at::Tensor of_output =
      gradient.reshape({x.size(0), x.size(1), heads, width}).transpose(1, 2);
  const auto [q, k, v] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
      of_output, parts[0], parts[1], parts[2], of.of_heads, of.log_sums, /*dropout_p=*/0.0, causal);
  at::Tensor of_x = at::empty(x.sizes(), x.options());
  const at::Tensor to = parts_of(of_x, heads);
  to[0].copy_(q);
  to[1].copy_(k);
  to[2].copy_(v);
  return of_x;
}

SelfAttentionImpl::SelfAttentionImpl(int64_t features, int64_t heads) : heads_(heads) {
  if (heads < 1 || features < 1 || features % heads != 0) {
    throw UsageError(fmt::format("nn::SelfAttention: heads is {}, must be 1 or more and divide {}",
                                 heads, features));
  }
  in_proj_weight_ = register_parameter("in_proj_weight", torch::empty({3 * features, features}));
  in_proj_bias_ = register_parameter("in_proj_bias", torch::zeros({3 * features}));
  out_proj_ = register_module("out_proj", Linear(features, features));
  torch::nn::init::xavier_uniform_(in_proj_weight_);
  torch::nn::init::zeros_(out_proj_->bias);
}

at::Tensor SelfAttentionImpl::forward(const at::Tensor& x) {
  return out_proj_(attend(dense(x, in_proj_weight_, in_proj_bias_), heads_, /*causal=*/false));
}

}  // namespace tutti::nn
