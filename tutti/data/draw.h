/// Draw: the random numbers that a transform may use, keyed by (seed, epoch, sample, stage).
///
/// Whoever computes a sample, in whatever thread, process or world, draws the same numbers.
/// Thread rule: belongs to the call that was given it.
#pragma once

#include <cstdint>

#include "tutti/base/random.h"

namespace tutti::data {

class Draw {
 public:
  explicit Draw(uint64_t key) noexcept : stream_(key) {}

  float uniform() noexcept { return stream_.uniform(); }  ///< in [0, 1), a multiple of 2^-24
  /// In [low, high), low where they are equal.
  double uniform(double low, double high) noexcept {
    return low + (high - low) * uniform_double(stream_.next64());
  }
  int64_t below(int64_t n) noexcept {  ///< in [0, n), without bias; n >= 1
    return static_cast<int64_t>(stream_.below(static_cast<uint64_t>(n)));
  }
  bool chance(double probability) noexcept { return uniform(0, 1) < probability; }
  /// Of mean 0 and variance 1. Ratio of uniforms, Leva 1992, doi:10.1145/138351.138364
  double normal() noexcept;
  /// Beta(alpha, alpha), alpha > 0, as mixup uses it: of two gamma variates, Marsaglia and Tsang
  /// 2000, doi:10.1145/358407.358414
  double beta(double alpha) noexcept;

 private:
  double gamma(double shape) noexcept;

  RandomStream stream_;
};

}  // namespace tutti::data
