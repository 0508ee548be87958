/// Pace: how the replicas of this worker go through the steps of an epoch, and whom they wait for.
/// Not for users. docs/design/pace.md has the table of who does what. Thread rule: that of fit().
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "tutti/train/model/detail/model_state.h"

namespace tutti::detail {

class Fit;
struct Epoch;

class Pace {
 public:
  virtual ~Pace() = default;

  /// Trains the steps of `epoch` that are still to do. `each`, by local replica: what it had added
  /// up in them before, and with them. Returns what the replicas of all workers have; nothing where
  /// the others had ended the epoch before this worker came. Shares that move do so in `epoch`.
  virtual std::optional<Totals> run(Epoch& epoch, std::vector<Totals>& each) = 0;

  /// All workers meet in every step: one's callbacks can decide for all, and there are checkpoints.
  virtual bool all_meet() const noexcept { return true; }
  /// Every worker takes part in every step, if it is not lost.
  virtual bool all_step() const noexcept { return true; }
  /// Else all workers evaluate together, each its part.
  virtual bool chief_validates_alone() const noexcept { return false; }
};

/// That of a fit() in the strategy's world as it is now. Throws UsageError for options which that
/// has no answer to.
std::unique_ptr<Pace> pace_of(Fit& fit);

/// One for each way (in_step.cpp, in_turn.cpp, by_lease.cpp, by_plugin.cpp).
std::unique_ptr<Pace> make_in_step(Fit& fit);
std::unique_ptr<Pace> make_in_step_but_lost(Fit& fit);
std::unique_ptr<Pace> make_in_step_but_late(Fit& fit);
std::unique_ptr<Pace> make_in_turn(Fit& fit);
std::unique_ptr<Pace> make_by_lease(Fit& fit);
std::unique_ptr<Pace> make_by_plugin(Fit& fit);

}  // namespace tutti::detail
