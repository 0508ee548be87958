#include "tutti/parallel/tensor/attention.h"

#include <fmt/format.h>

#include <cmath>

#include "tutti/base/error.h"
#include "tutti/nn/attention.h"
#include "tutti/parallel/tensor/detail/cut.h"

namespace tutti::parallel {
namespace {

void require_heads_of(const std::string& name, const SelfAttentionOptions& options, int blocks) {
  const auto [features, heads, causal] = options;
  if (heads < 1 || features < 1 || features % heads != 0)
    throw UsageError(fmt::format("layer {}: {} heads, must be 1 or more and divide {} features",
                                 name, heads, features));
  detail::require_heads(name, heads, blocks);
}

}  // namespace

SelfAttentionImpl::SelfAttentionImpl(const TensorGroup& group, const SelfAttentionOptions& options,
                                     const Initial& initial)
    : CutLayer(group, initial), options_(options) {
  require_heads_of(initial.name, options, group.blocks());
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
  Blocks blocks = detail::column_products(
      group(), copies, {in_proj_weight, in_proj_bias, 3 * options_.features, /*stacked=*/3});
  for (at::Tensor& block : blocks)
    block = nn::attend(block, options_.heads / group().blocks(), options_.causal);
  return blocks;
}

Blocks SelfAttentionImpl::forward_sequence(const Blocks& parts) {
  return out_proj->forward_sequence(attended(sequence_all_gather(group(), parts, 1)), 1);
}

}  // namespace tutti::parallel
