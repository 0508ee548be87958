#include "tutti/parallel/attention.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>

#include "tutti/base/error.h"
#include "tutti/nn/dense.h"
#include "tutti/parallel/detail/tree_sum.h"

namespace tutti::parallel {
namespace {

void require_heads(const std::string& name, const SelfAttentionOptions& options, int blocks) {
  const auto [features, heads, causal] = options;
  if (heads < 1 || features < 1 || features % heads != 0)
    throw UsageError(fmt::format("layer {}: {} heads, must be 1 or more and divide {} features",
                                 name, heads, features));
  if (heads % blocks == 0) return;
  std::vector<int64_t> possible;
  for (int64_t n = 1; n <= heads; ++n)
    if (heads % n == 0) possible.push_back(n);
  throw UsageError(fmt::format("layer {}: {} heads on tensor = {} (possible: {})", name, heads,
                               blocks, fmt::join(possible, ", ")));
}

/// x [batch, length, 3 * features]: queries, keys and values side by side. Gives [batch, length,
/// features].
at::Tensor attend_heads(const at::Tensor& x, int64_t heads, bool causal) {
  const auto parts = x.view({x.size(0), x.size(1), 3, heads, -1}).permute({2, 0, 3, 1, 4});
  return at::scaled_dot_product_attention(parts[0], parts[1], parts[2], /*attn_mask=*/{},
                                          /*dropout_p=*/0.0, causal)
      .transpose(1, 2)
      .reshape({x.size(0), x.size(1), -1});
}

/// Of q, k and v, one below the other, those of each block.
Blocks rows_of_blocks(const at::Tensor& parameter, const std::vector<int64_t>& sizes) {
  if (sizes.size() == 1) return detail::aligned_parts(parameter, {parameter.size(0)}, 0);
  Blocks rows = parameter.unflatten(0, {3, -1}).split_with_sizes(sizes, 1);
  for (at::Tensor& block : rows) block = block.clone(at::MemoryFormat::Contiguous).flatten(0, 1);
  return rows;
}

}  // namespace

SelfAttentionImpl::SelfAttentionImpl(const TensorGroup& group, const SelfAttentionOptions& options,
                                     const Initial& initial)
    : CutLayer(group, initial), options_(options) {
  require_heads(initial.name, options, group.blocks());
  const int64_t features = options.features;
  // Of xavier_uniform: sqrt(6 / (fan in + fan out)).
  const double bound = std::sqrt(6 / static_cast<double>(4 * features));
  in_proj_weight = add_piece("in_proj_weight", cut({3 * features, features}, 0, /*stacked=*/3),
                             {Distribution::Kind::uniform, bound});
  in_proj_bias = add_piece("in_proj_bias", cut({3 * features}, 0, /*stacked=*/3), {});
  out_proj = register_module(
      "out_proj",
      RowLinear(group, torch::nn::LinearOptions(features, features), initial.of("out_proj")));
  const torch::NoGradGuard no_grad;
  out_proj->bias.zero_();
}

Blocks SelfAttentionImpl::attended(const Blocks& copies) {
  const auto sizes = group().sizes_of(group().rank(), options_.features);
  const int64_t heads = options_.heads / group().blocks();
  const Blocks weights = rows_of_blocks(in_proj_weight, sizes);
  const Blocks biases = rows_of_blocks(in_proj_bias, sizes);
  Blocks outputs;
  for (size_t block = 0; block < copies.size(); ++block)
    outputs.push_back(attend_heads(nn::dense(copies[block], weights[block], biases[block]), heads,
                                   options_.causal));
  return outputs;
}

Blocks SelfAttentionImpl::forward_sequence(const Blocks& parts) {
  return out_proj->forward_sequence(attended(sequence_all_gather(group(), parts, 1)), 1);
}

}  // namespace tutti::parallel
