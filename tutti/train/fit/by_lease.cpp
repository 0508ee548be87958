// Where workers are not in step: each takes its next batch from the servers, and what all have
// counted comes back when the epoch is over.

#include <algorithm>

#include "tutti/base/error.h"
#include "tutti/base/log.h"
#include "tutti/ps/client/client.h"
#include "tutti/train/fit/detail/fit.h"

namespace tutti::detail {
namespace {

class ByLease final : public Pace {
 public:
  explicit ByLease(Fit& fit) : fit_(fit), servers_(*fit.optimizer().updater().parts().client) {
    if (fit.options().initial_epoch > 0)
      throw UsageError(
          "fit: initial_epoch: workers are not in step (--staleness), the servers count the "
          "epochs");
  }

  std::optional<Totals> run(Epoch& epoch, std::vector<Totals>& each) override;
  bool all_meet() const noexcept override { return false; }
  bool all_step() const noexcept override { return false; }
  bool chief_validates_alone() const noexcept override { return true; }

 private:
  int64_t next(ReplicaContext& replica, const Epoch& epoch, Totals part, int64_t done);

  Fit& fit_;
  ps::Client& servers_;
  ps::Lease lease_{};  // the last
};

std::optional<Totals> ByLease::run(Epoch& epoch, std::vector<Totals>& each) {
  Totals& own = each[0];  // of this worker's first replica: for the progress bar, and its end
  fit_.strategy().run([&](ReplicaContext& replica) {
    const Forward& forward = fit_.forward(replica);
    fit_.require_here(replica);
    Totals part;
    int64_t batch = next(replica, epoch, part, -1);
    while (batch >= 0) {
      part = {};
      fit_.optimizer().prepare(replica);
      Tally tally(replica, part);
      fit_.step(replica, forward, epoch, batch, tally);
      tally.settle();  // the batch goes back with what was counted on it
      fit_.after_step(replica, epoch, batch, part);
      fit_.agree(replica, epoch, batch, tally, epoch.world->local);
      if (replica.local_rank() == 0) {
        own.add(part);
        own.signal = part.signal;
        own.stop = part.stop;
        own.bad_step = part.bad_step;
        fit_.stepped(epoch, batch, own);
      }
      if (fit_.ends(part)) return;
      batch = next(replica, epoch, std::move(part), batch);
    }
  });
  fit_.raise(epoch, own);
  fit_.optimizer().updater().parts().late->refresh();
  fit_.count_steps(epoch.steps_before + epoch.steps);
  if (lease_.past) return std::nullopt;
  Totals all = Totals::unpacked(fit_.goals(), lease_.sums);
  fit_.count_images(all.samples);
  if (lease_.repeats > 0 && epoch.world->chief)
    log(LogLevel::warning, "epoch {}: {} {} trained again, since the worker that had {} was lost",
        epoch.number + 1, lease_.repeats, lease_.repeats == 1 ? "batch was" : "batches were",
        lease_.repeats == 1 ? "it" : "them");
  return all;
}

// Gives batch `done` back with what this worker's replicas have counted on it. -1: the epoch is
// over.
int64_t ByLease::next(ReplicaContext& replica, const Epoch& epoch, Totals part, int64_t done) {
  Group& group = replica.group();
  std::vector<int64_t> widths = part.widths(fit_.goals());
  const bool sized = std::ranges::any_of(
      fit_.goals(), [](const Goal& goal) { return sized_by_width(goal.metrics); });
  if (epoch.world->local > 1 && sized)
    group.all_reduce_now(span_of(std::span(widths)), ReduceOp::max, epoch.world->time_limit);
  std::vector<double> sums = part.packed(fit_.goals(), widths);
  if (epoch.world->local > 1)
    group.all_reduce_now(span_of(std::span(sums)), ReduceOp::sum, epoch.world->time_limit);
  int64_t batch = 0;
  if (replica.local_rank() == 0) {
    // Who waits, waits for a batch of another worker's, which may be lost first.
    lease_ = servers_.lease({.epoch = epoch.number,
                             .num_batches = epoch.steps,
                             .returned = done,
                             .sums = std::move(sums),
                             .agreed = done < 0 ? fit_.asked() : ""},
                            Deadline(2 * epoch.world->time_limit));
    batch = lease_.batch;
  }
  if (epoch.world->local > 1)
    group.all_reduce_now(span_of(std::span(&batch, 1)), ReduceOp::sum, epoch.world->time_limit);
  return batch;
}

}  // namespace

std::unique_ptr<Pace> make_by_lease(Fit& fit) { return std::make_unique<ByLease>(fit); }

}  // namespace tutti::detail
