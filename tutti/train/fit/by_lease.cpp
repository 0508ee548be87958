// Where workers are not in step: each takes its next batch from the servers, and what all have
// counted comes back when the epoch is over.

#include <algorithm>

#include "tutti/base/log.h"
#include "tutti/train/fit/detail/fit.h"

namespace tutti::detail {

Totals Fit::workers_by_lease(const Epoch& epoch) {
  Totals own;  // of this worker's first replica: for the progress bar, and its end
  model_.strategy.run([&](ReplicaContext& replica) {
    const Forward& forward = model_.forward(replica.local_rank());
    Totals part;
    int64_t batch = next_lease(replica, epoch, part, -1);
    while (batch >= 0) {
      part = {};
      compiled_.optimizer.prepare(replica);
      step(replica, forward, epoch, batch, part);
      after_step(replica, epoch, batch, part);
      agree(replica, epoch, batch, part);
      if (replica.local_rank() == 0) {
        own.add(part);
        own.signal = part.signal;
        own.stop = part.stop;
        own.bad_step = part.bad_step;
        stepped(epoch, batch, own);
      }
      if (ends(part)) return;
      batch = next_lease(replica, epoch, std::move(part), batch);
    }
  });
  raise(epoch, own);
  compiled_.optimizer.updater().refresh();
  const Totals all = Totals::unpacked(compiled_.goals, lease_.sums);
  history_.steps = epoch.number * epoch_length_ + epoch.steps;
  epoch_images_ = all.samples;
  if (lease_.repeats > 0 && shows_)
    log(LogLevel::warning, "epoch {}: {} {} trained again, since the worker that had {} was lost",
        epoch.number + 1, lease_.repeats, lease_.repeats == 1 ? "batch was" : "batches were",
        lease_.repeats == 1 ? "it" : "them");
  return all;
}

// Gives batch `done` back with what this worker's replicas have counted on it. -1: the epoch is
// over.
int64_t Fit::next_lease(ReplicaContext& replica, const Epoch& epoch, Totals part, int64_t done) {
  Group& group = replica.group();
  std::vector<int64_t> widths = part.widths(compiled_.goals);
  const bool sized = std::ranges::any_of(
      compiled_.goals, [](const Goal& goal) { return sized_by_width(goal.metrics); });
  if (epoch.world.local > 1 && sized)
    group.all_reduce_now(span_of(std::span(widths)), ReduceOp::max, epoch.world.time_limit);
  std::vector<double> sums = part.packed(compiled_.goals, widths);
  if (epoch.world.local > 1)
    group.all_reduce_now(span_of(std::span(sums)), ReduceOp::sum, epoch.world.time_limit);
  int64_t batch = 0;
  if (replica.local_rank() == 0) {
    // Who waits, waits for a batch of another worker's, which may be lost first.
    lease_ = leases_->lease({.epoch = epoch.number,
                             .num_batches = epoch.steps,
                             .returned = done,
                             .sums = std::move(sums)},
                            Deadline(2 * epoch.world.time_limit));
    batch = lease_.batch;
  }
  if (epoch.world.local > 1)
    group.all_reduce_now(span_of(std::span(&batch, 1)), ReduceOp::sum, epoch.world.time_limit);
  return batch;
}

}  // namespace tutti::detail
