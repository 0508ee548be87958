#include "tutti/nn/attention.h"

#include <fmt/format.h>
#include <torch/nn/init.h>
#include <torch/types.h>

#include "tutti/base/error.h"

namespace tutti::nn {

at::Tensor attend(const at::Tensor& x, int64_t heads, bool causal) {
  const int64_t batch = x.size(0), length = x.size(1), features = x.size(2) / 3;
  // [batch, length, 3, heads, width] to three times [batch, heads, length, width].
  const auto parts =
      x.reshape({batch, length, 3, heads, features / heads}).permute({2, 0, 3, 1, 4});
  const auto of_heads = at::scaled_dot_product_attention(
      parts[0], parts[1], parts[2], /*attn_mask=*/{}, /*dropout_p=*/0.0, causal);
  return of_heads.transpose(1, 2).reshape({batch, length, features});
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
