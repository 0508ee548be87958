/// LossScale: by how much losses are multiplied so that float16 gradients neither vanish nor
/// overflow. Micikevicius et al. 2018, arXiv:1710.03740; the numbers are those of PyTorch's
/// GradScaler.
///
/// A step whose gradients are not all finite is left out, and the scale falls; after so many good
/// steps in a row it grows. All replicas are told the same of every step, so that all have one
/// scale.
///
/// Without LibTorch. Thread rule: plain values.
#pragma once

#include <cstdint>

namespace tutti::optim {

/// UsageError names the field that is out of range, when a LossScale is made.
struct LossScaling {
  double initial = 65'536;         ///< > 0; powers of two round nothing
  double growth = 2;               ///< > 1: the scale becomes so many times as large,
  int64_t growth_interval = 2000;  ///< 1 to 2^31 - 1: after so many good steps in a row
  double backoff = 0.5;            ///< > 0, < 1: and so many times as large after an overflow
};

class LossScale {
 public:
  explicit LossScale(const LossScaling& options = {});

  const LossScaling& options() const noexcept { return options_; }
  double value() const noexcept { return value_; }             ///< a float32
  int64_t good_steps() const noexcept { return good_steps_; }  ///< since the scale has changed
  int64_t skipped() const noexcept { return skipped_; }        ///< steps that were left out, in all

  /// Goes on from what another one said of itself.
  void restore(double value, int64_t good_steps, int64_t skipped);

  /// After a step; `overflowed`: a gradient of any replica was not finite. The scale does not grow
  /// beyond float32. Throws Error when it falls below 2^-16: then it is not the scale that makes
  /// gradients infinite.
  void update(bool overflowed);

  /// Throws that Error for a scale that is so small.
  static void require_useful(double value, const LossScaling& options);

 private:
  LossScaling options_;
  float value_;  // as devices keep it: all have the same bits
  int64_t good_steps_ = 0;
  int64_t skipped_ = 0;
};

}  // namespace tutti::optim
