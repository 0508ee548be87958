/// GradientMeter: how long the gradients of an update are, measured where the update adds them.
///
/// The fused step has the gradients of all replicas and their sum in cache, block by block; their
/// squares are added there. Parameters, states and bits of the training stay what they are without.
/// docs/design/noise_scale.md.
#pragma once

#include <cstdint>
#include <vector>

namespace tutti {

/// For how many updates the gradients of the one after `version` others stand; 0: they are not
/// measured. All of the first 64 are, which are many for a short training, then every eighth, so
/// that it costs even networks whose steps are short next to nothing.
constexpr int updates_measured(int64_t version) noexcept {
  if (version < 64) return 1;
  return version % 8 == 0 ? 8 : 0;
}

/// Sums of squares over all elements of one update's gradients, as they were pushed (a replica's is
/// that of its samples' losses over the global batch): float64, added block by block in the order
/// of elements, so that all ranks, and replicas in turn, get the same bits. Before clipping.
struct GradientSquares {
  std::vector<double> parts;  ///< by replica; 0: it had no gradient. Empty: no update was measured
  double sum = 0;             ///< of the sum of the parts
  int updates = 1;            ///< for which it stands
};

/// Thread rule: begin_measuring() from the thread that runs the strategy, between runs;
/// last_squares() of a replica from its own thread, or between runs.
class GradientMeter {
 public:
  /// From the next update on, as updates_measured() says. Collective over workers. Not undone;
  /// once more changes nothing.
  virtual void begin_measuring() = 0;
  /// Of the last step, for each worker's first replica; empty parts where it was left out, or is
  /// none of those that are measured.
  virtual const GradientSquares& last_squares() const = 0;

 protected:
  ~GradientMeter() = default;
};

}  // namespace tutti
