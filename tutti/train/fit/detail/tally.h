/// Tally: what one replica adds up in the steps of a fit(), some of it later than they were queued.
/// Not for users.
///
/// A device's figures come late, and those of a step whose loss is not finite later than the steps
/// that were queued after it. So that totals are those of the steps that were made, whatever came
/// when, a step is counted once its figures have come on all replicas that end together. On the CPU
/// all is counted at once, and a Tally is a reference.
/// Thread rule: that of the replica.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>

#include "tutti/queues/late_reads.h"
#include "tutti/train/model/detail/model_state.h"

namespace tutti::detail {

class Tally {
 public:
  /// `into` outlives it.
  Tally(const ReplicaContext& replica, Totals& into)
      : totals(into), late(replica.queue()), limit_(patience_with_device(replica.time_limit())) {}

  Totals& totals;
  LateReads late;

  /// Figures of a batch of `step` are on their way, after those of earlier ones.
  void expect(int64_t step) { expected_.push_back(step); }
  /// The first of them have come; `add` counts them.
  void come(std::function<void()> add);

  /// Takes what has come; all, after a wait.
  void poll() { late.poll(Deadline(limit_)); }
  void settle() { late.settle(Deadline(limit_)); }

  /// The last step, `step` at most, whose figures have all come.
  int64_t known(int64_t step) const { return expected_.empty() ? step : expected_.front() - 1; }
  /// Counts the steps up to `step`, which have come.
  void count_until(int64_t step);

 private:
  struct Come {
    int64_t step;
    std::function<void()> add;
  };
  Millis limit_;
  std::deque<int64_t> expected_;
  std::deque<Come> come_;
};

}  // namespace tutti::detail
