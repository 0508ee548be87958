/// SelfAttention: multi-head attention of sequences to themselves, cut along the heads.
///
/// Vaswani et al. 2017, arXiv:1706.03762, section 3.2.2; each block computes its heads and its rows
/// of the output's product, so that a pass has one copy_to and one sum_of (Shoeybi et al. 2019,
/// arXiv:1909.08053, figure 3b). Parameters have the names and initial values of
/// torch::nn::MultiheadAttention, and the shapes that one of the rank's heads has.
/// Thread rule and errors: those of layers.h.
#pragma once

#include <memory>

#include "tutti/parallel/tensor/layers.h"

namespace tutti::parallel {

struct SelfAttentionOptions {
  int64_t features = 0;
  int64_t heads = 0;
  bool causal = false;  ///< places see themselves and those before them
};

class SelfAttentionImpl : public CutLayer {
 public:
  /// Throws UsageError unless heads divides features and blocks divide heads: "6 heads on tensor =
  /// 4 (possible: 1, 2, 3, 6)".
  SelfAttentionImpl(const TensorGroup& group, const SelfAttentionOptions& options,
                    const Initial& initial);

  /// x: [batch, length, features], the same on all ranks, as is what it gives.
  at::Tensor forward(const at::Tensor& x) { return out_proj(attended(copy_to(group(), x))); }
  /// Sequence parallel: from and to parts of the length, one a block.
  Blocks forward_sequence(const Blocks& parts);

  at::Tensor in_proj_weight;  ///< of q, k, v, one below the other: [3 * this rank's, features]
  at::Tensor in_proj_bias;    ///< [3 * this rank's]
  RowLinear out_proj{nullptr};

 private:
  Blocks attended(const Blocks& copies);
  SelfAttentionOptions options_;
};
/// Holder, as torch::nn's modules have one.
class SelfAttention : public torch::nn::ModuleHolder<SelfAttentionImpl> {
 public:
  using torch::nn::ModuleHolder<SelfAttentionImpl>::ModuleHolder;
  SelfAttention(const TensorGroup& group, const SelfAttentionOptions& options,
                const Initial& initial)
      : ModuleHolder(std::make_shared<SelfAttentionImpl>(group, options, initial)) {}
};

}  // namespace tutti::parallel
