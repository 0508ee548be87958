/// Mlp: two dense layers with an activation between them, cut along the hidden units.
///
/// Columns of the first layer, then rows of the second: one copy_to and one sum_of a pass (Shoeybi
/// et al. 2019, arXiv:1909.08053, figure 3a). Thread rule and errors: those of layers.h.
#pragma once

#include <functional>
#include <memory>

#include "tutti/parallel/tensor/layers.h"

namespace tutti::parallel {

struct MlpOptions {
  int64_t features = 0;
  int64_t hidden = 0;
  bool bias = true;
  /// Applied to each block alone, so element by element; gelu when empty.
  std::function<at::Tensor(const at::Tensor&)> activation{};
};

/// Parameters up.weight, up.bias, down.weight, down.bias.
class MlpImpl : public torch::nn::Module {
 public:
  MlpImpl(const TensorGroup& group, MlpOptions options, const Initial& initial);

  /// x: [..., features], the same on all ranks, as is what it gives.
  at::Tensor forward(const at::Tensor& x) { return down(activated(up(x))); }
  /// Sequence parallel: from and to parts along `axis` of the sequence, one a block.
  Blocks forward_sequence(const Blocks& parts, int64_t axis);

  ColumnLinear up{nullptr};
  RowLinear down{nullptr};

 private:
  Blocks activated(Blocks blocks) const;
  std::function<at::Tensor(const at::Tensor&)> activation_;
};
/// Holder, as torch::nn's modules have one.
class Mlp : public torch::nn::ModuleHolder<MlpImpl> {
 public:
  using torch::nn::ModuleHolder<MlpImpl>::ModuleHolder;
  Mlp(const TensorGroup& group, const MlpOptions& options, const Initial& initial)
      : ModuleHolder(std::make_shared<MlpImpl>(group, options, initial)) {}
};

}  // namespace tutti::parallel
