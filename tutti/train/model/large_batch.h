/// LargeBatch: what lets a batch of thousands train as one of hundreds does, as one option.
///
///   model.compile({.optimizer = tutti::optim::sgd({.momentum = 0.9, .weight_decay = 1e-4}),
///                  .loss = ...,
///                  .large_batch = tutti::LargeBatch{.base = 256, .base_rate = 0.1}});
///
/// The recipe of Goyal et al. 2017, arXiv:1706.02677, each part of which fit() prints as a line:
/// the learning rate of a known batch, scaled to this one; a warm-up; no weight decay on norms and
/// biases; the last batch norm of each residual block begins at 0. Momentum needs no correction
/// (section 3, remark 2): no rule of tutti has the rate in the sums that it keeps. Rates by layer
/// are the optimizer's: optim::lars(), optim::lamb(). docs/design/large_batches.md.
/// Thread rule: plain values.
#pragma once

#include <cstdint>
#include <optional>

namespace tutti {

/// How the learning rate grows with the batch, k times that of the base.
enum class BatchScaling : uint8_t {
  linear,       ///< k: of sgd. Goyal et al. 2017, section 2.1
  square_root,  ///< sqrt(k): of Adam and its kin. Malladi et al. 2022, arXiv:2205.10287
};

/// A length of a training; both add up.
struct TrainingLength {
  int64_t epochs = 0;  ///< >= 0, of fit()
  int64_t steps = 0;   ///< >= 0
};
constexpr TrainingLength epochs(int64_t count) { return {.epochs = count}; }

struct LargeBatch {
  int64_t base = 256;    ///< samples an update, >= 1, that the base rate suits
  double base_rate = 0;  ///< finite, >= 0. 0: what CompileOptions::learning_rate gives at each
                         ///< step, or else the optimizer's own rate, is that of the base
  /// Unset: linear for sgd and lars, square_root for all others, which divide by the gradient's
  /// size.
  std::optional<BatchScaling> scaling{};
  /// Steps in which the factor grows from 1 to that of this batch, along a straight line.
  TrainingLength warm_up = epochs(5);
  bool decay_norms_and_biases = false;  ///< parameters of one dimension at most; false: they have
                                        ///< no weight decay, unless a group of the recipe gives one
  /// Weights that are all 1 become 0, of a graph's last_batch_norms() (nn/residual.h).
  bool zero_last_norms = true;
};

/// Throws UsageError that names the field, its value and the range.
void require_valid(const LargeBatch& options);

}  // namespace tutti
