// Replicas at once, as threads: all take every step, and end at the same one.

#include <array>

#include "tutti/train/fit/detail/fit.h"

namespace tutti::detail {
namespace {

class InStep : public Pace {
 public:
  explicit InStep(Fit& fit) : fit_(fit) {}

  // One run() for the whole epoch: replicas meet in the updater, nobody wakes or joins threads. But
  // run() looks for mistakes at its end, and those should not cost an epoch. And between two steps
  // of a checkpoint nobody computes.
  std::optional<Totals> run(Epoch& epoch, std::vector<Totals>& each) override {
    for (int64_t done = epoch.first_step; done < epoch.steps && !fit_.ends(each[0]);) {
      fit_.before_steps(epoch, done);
      const int64_t until = done + (looked_at_ ? fit_.steps_until_pause(epoch, done) : 1);
      steps(epoch, done, until, each);
      looked_at_ = true;
      done = until;
      fit_.save_between(epoch, each);
    }
    fit_.take_back_left_out(epoch, each[0]);
    fit_.raise(epoch, each[0]);
    return sum_over_world(fit_.strategy(), fit_.goals(),
                          PerReplica<Totals>(each, epoch.world->first_rank));
  }

 protected:
  /// Replicas that end at the same step.
  virtual int together(const mesh::Topology& all) const { return all.size; }
  virtual int64_t step_after(const Epoch&, int64_t step) const { return step + 1; }

  Fit& fit_;

 private:
  void steps(const Epoch& epoch, int64_t begin, int64_t end, std::vector<Totals>& each) {
    fit_.strategy().run([&](ReplicaContext& replica) {
      const Forward& forward = fit_.forward(replica);
      fit_.require_here(replica);
      Totals& kept = each[static_cast<size_t>(replica.local_rank())];
      Totals totals = std::move(kept);  // the replicas' own lie side by side in memory
      Tally tally(replica, totals);
      const int with_us = together(*epoch.world);
      for (int64_t s = begin; s < end && !fit_.ends(totals); s = step_after(epoch, s)) {
        fit_.step(replica, forward, epoch, s, tally);
        if (fit_.left_out(replica)) {
          if (totals.bad_step < 0) totals.bad_step = s;  // another replica's loss
          break;
        }
        fit_.after_step(replica, epoch, s, totals);
        fit_.agree(replica, epoch, s, tally, with_us);
        if (replica.local_rank() == 0) fit_.stepped(epoch, s, totals);
      }
      fit_.settle(replica, epoch, end - 1, tally, with_us);
      kept = std::move(totals);
    });
  }

  bool looked_at_ = false;  // a first run() has ended, which looks for mistakes
};

/// Workers meet at parameter servers alone, since any of them may be lost.
class InStepButLost final : public InStep {
 public:
  using InStep::InStep;
  bool all_meet() const noexcept override { return false; }

 private:
  int together(const mesh::Topology& all) const override { return all.local; }
};

/// Servers leave out whoever is late: it goes on at the step that the others are at.
class InStepButLate final : public InStep {
 public:
  using InStep::InStep;
  bool all_meet() const noexcept override { return false; }
  bool all_step() const noexcept override { return false; }

  std::optional<Totals> run(Epoch& epoch, std::vector<Totals>& each) override {
    auto all = InStep::run(epoch, each);
    fit_.count_steps(epoch.steps_before + epoch.steps);
    return all;
  }

 private:
  // Nobody waits for the slowest, here neither.
  int together(const mesh::Topology&) const override { return 1; }
  int64_t step_after(const Epoch& epoch, int64_t step) const override {
    return std::max(step + 1, fit_.version() - epoch.first_update);
  }
};

}  // namespace

std::unique_ptr<Pace> make_in_step(Fit& fit) { return std::make_unique<InStep>(fit); }

std::unique_ptr<Pace> make_in_step_but_lost(Fit& fit) {
  return std::make_unique<InStepButLost>(fit);
}

std::unique_ptr<Pace> make_in_step_but_late(Fit& fit) {
  return std::make_unique<InStepButLate>(fit);
}

}  // namespace tutti::detail
