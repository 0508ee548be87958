/// NoiseScale: up to what size a larger batch pays, from gradients that a training makes anyway.
///
/// Glossary: G the gradient of the expected loss, Sigma the covariance of one sample's gradient, B
/// the samples of an update, n its parts (replicas), b those of a part. For a mean over b samples
/// E|g|^2 = |G|^2 + tr(Sigma) / b: two sizes of batch give both unknowns. The parts are weighted by
/// their samples, so that they count as n parts of B / n, whatever their shares are:
///   small = sum of (b / B) |g_part|^2,  big = |g_all|^2
///   |G|^2 = (B big - (B / n) small) / (B - B / n),  tr(Sigma) = (small - big) / (n / B - 1 / B)
/// Both are smoothed apart, since a ratio of noisy numbers is biased: each update's share of the
/// mean fades by 0.99 in eight updates. The noise scale is tr(Sigma) / |G|^2, a number
/// of samples. McCandlish et al. 2018, arXiv:1812.06162, appendix A.1; the weights make tr(Sigma)
/// the within-group variance of a one-way analysis of variance. docs/design/noise_scale.md. Thread
/// rule: one thread at a time.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>

#include "tutti/sync/gradient_meter.h"

namespace tutti {

class NoiseScale {
 public:
  /// One update. squares: as GradientMeter gives them, of parts whose losses were divided by all
  /// samples of the update; samples: of each part. Nothing is learnt, and nothing changes, where
  /// fewer than two parts have samples, where nothing has a gradient, and where a sum is not
  /// finite.
  void add(const GradientSquares& squares, std::span<const int64_t> samples);

  /// tr(Sigma) / |G|^2, in samples; NaN before the first update, and where the noise hides the
  /// gradient (the estimate of |G|^2 is not above 0) or there is none (tr(Sigma) is below 0).
  double value() const;
  double gradient_square() const;  ///< |G|^2; may be below 0; NaN before the first update
  double noise() const;            ///< tr(Sigma), likewise

  /// For people, of a training whose updates have `batch` samples: the noise scale, and beyond what
  /// batch more samples an update stop paying. A training with batches of the noise scale takes
  /// twice the least number of updates and twice the least number of samples: S / S_min - 1 =
  /// (E / E_min - 1)^-1, section 2.3.
  std::string to_string(int64_t batch) const;

  /// All that it keeps, for checkpoints: finite numbers; the last one is 0 before the first update.
  static constexpr size_t kNumbers = 3;
  std::array<double, kNumbers> state() const { return {gradient_square_, noise_, weight_}; }
  void restore(std::span<const double, kNumbers> state);

 private:
  double gradient_square_ = 0;  // each update's, fading, and what they weigh together
  double noise_ = 0;
  double weight_ = 0;
};

}  // namespace tutti
