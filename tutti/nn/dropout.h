/// nn::Dropout: dropout whose mask does not depend on the number of replicas.
///
/// LibTorch's dropout draws from a generator (the replica's own, where there are several), so its
/// masks change with the number of replicas. This one computes each number from (seed, step, layer,
/// global sample row, place in the row): the same sample gets the same mask whoever holds it.
/// docs/design/graph.md.
#pragma once

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <memory>

namespace tutti::nn {

struct DropoutOptions {
  double probability = 0.5;  ///< of an element to become zero, in [0, 1)
  /// Number of the layer in its model, part of the key. -1: calls are numbered in the order in
  /// which they are made in a step, which is right unless replicas take different branches.
  int64_t layer = -1;
};

/// A mask for `rows` samples of `row_elements` elements each: 0 or 1 / (1 - probability).
///
/// key        from random_key(seed, RandomPurpose::dropout, {step, layer})
/// first_row  of the first sample in the global batch
/// mask       rows * row_elements floats
void dropout_mask(uint64_t key, double probability, int64_t first_row, int64_t rows,
                  int64_t row_elements, float* mask);

class DropoutImpl : public torch::nn::Module {
 public:
  /// Throws UsageError when the probability is out of range.
  explicit DropoutImpl(double probability = 0.5) : DropoutImpl(DropoutOptions{probability}) {}
  explicit DropoutImpl(DropoutOptions options);

  /// x: [batch, ...], any floating dtype. In training the surviving elements are scaled by
  /// 1 / (1 - p); in evaluation x comes back as it is. Training without a SampleContext:
  /// UsageError.
  at::Tensor forward(const at::Tensor& x);

  /// What forward() multiplies x by: of its shape, dtype and device; undefined where x comes back
  /// as it is. Of each call another, as forward()'s.
  at::Tensor mask_of(const at::Tensor& x) const;

  const DropoutOptions& options() const noexcept { return options_; }

 private:
  DropoutOptions options_;
};

/// Holder, as torch::nn's modules have one: nn::Dropout drop(0.5); drop(x).
class Dropout : public torch::nn::ModuleHolder<DropoutImpl> {
 public:
  using torch::nn::ModuleHolder<DropoutImpl>::ModuleHolder;
  explicit Dropout(DropoutOptions options) : ModuleHolder(std::make_shared<DropoutImpl>(options)) {}
};

}  // namespace tutti::nn
