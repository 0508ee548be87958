/// GradientMeter: how long the gradients of an update are, measured where the update adds them.
///
/// The fused step has the gradients of all replicas and their sum in cache, block by block; their
/// squares are added there. Parameters, states and bits of the training stay what they are without.
/// docs/design/noise_scale.md.
#pragma once

#include <vector>

namespace tutti {

/// Sums of squares over all elements of one update's gradients, as they were pushed (a replica's is
/// that of its samples' losses over the global batch): float64, added block by block in the order
/// of elements, so that all ranks, and replicas in turn, get the same bits. Before clipping.
struct GradientSquares {
  std::vector<double> parts;  ///< by replica; 0: it had no gradient. Empty: no update was measured
  double sum = 0;             ///< of the sum of the parts
};

/// Thread rule: begin_measuring() from the thread that runs the strategy, between runs;
/// last_squares() of a replica from its own thread, or between runs.
class GradientMeter {
 public:
  /// From the next update on. Collective over workers. Not undone.
  virtual void begin_measuring() = 0;
  /// Of the last step, for each worker's first replica; empty parts where it was left out.
  virtual const GradientSquares& last_squares() const = 0;

 protected:
  ~GradientMeter() = default;
};

}  // namespace tutti
