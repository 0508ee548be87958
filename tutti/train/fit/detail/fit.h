/// Fit: one call of Model::fit(). Shared by fit.cpp (the loop over epochs), step.cpp (a step of a
/// replica), checkpoints.cpp (what of it is kept on disk) and errors.cpp (what is wrong with it);
/// how replicas go through the steps of an epoch is a Pace's, and what they do with a batch a
/// StepBody's. Not for users. Thread rule: one thread, that of its strategy, but where a function
/// takes a replica: that one's.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "tutti/base/preemption.h"
#include "tutti/train/checkpointing/detail/checkpointing.h"
#include "tutti/train/fit/detail/body.h"
#include "tutti/train/fit/detail/callback_runner.h"
#include "tutti/train/fit/detail/counted_input.h"
#include "tutti/train/fit/detail/pace.h"
#include "tutti/train/fit/detail/position.h"
#include "tutti/train/fit/detail/tally.h"
#include "tutti/train/model/detail/model_state.h"
#include "tutti/train/watch/detail/watcher.h"

namespace tutti::detail {

/// What a Pace trains.
struct Epoch : EpochPlan {
  std::shared_ptr<const data::Epoch> data;
  std::shared_ptr<const World> world;
  std::shared_ptr<data::Loader> loader{};  ///< null: each replica computes its part itself

  DistributedBatch batch(int64_t number) const { return {data, number, world, nullptr, loader}; }
};

/// One call of fit(): the state of its loop.
class Fit {
 public:
  Fit(Model::State& model, data::Dataset train, FitOptions options);
  History run();
  Totals run_batch();

  // ---- for a Pace ----
  Strategy& strategy() noexcept { return model_.strategy; }
  Optimizer& optimizer() noexcept { return compiled_.optimizer; }
  const Goals& goals() const noexcept { return compiled_.goals; }
  const FitOptions& options() const noexcept { return options_; }
  const Forward& forward(const ReplicaContext& replica) const {
    return model_.forward(replica.local_rank());
  }
  /// The model is on the replica's device; UsageError names what is not.
  void require_here(const ReplicaContext& replica) const;
  int64_t version() const { return compiled_.optimizer.version(); }
  /// What all workers must have been asked for alike, where they meet at the servers alone.
  const std::string& asked() const noexcept { return asked_; }

  /// Of each step, before replica 0's part: its learning rate.
  void begin_step();
  /// One replica's part of a step, which adds up in `tally`: forward, backward, update.
  void step(ReplicaContext& replica, const Forward& forward, const Epoch& epoch, int64_t step,
            Tally& tally);
  /// What the chief's callbacks decide after a step; by replica 0, before agree(). On a device they
  /// see what has come, which is behind.
  void after_step(ReplicaContext& replica, const Epoch& epoch, int64_t step, Totals& totals);
  /// The same where replicas take turns: there is nothing to agree on.
  void after_step_of_all(const Epoch& epoch, int64_t step, Totals& totals);
  /// `together` replicas end at the same step; 1: each by itself. Counts the steps whose figures
  /// all of them have.
  void agree(ReplicaContext& replica, const Epoch& epoch, int64_t step, Tally& tally, int together);
  /// After the last of the steps of a run(): waits for what has not come.
  void settle(ReplicaContext& replica, const Epoch& epoch, int64_t step, Tally& tally,
              int together);
  /// All replicas have left the last step out, for a loss that was not finite on one of them.
  bool left_out(const ReplicaContext& replica) const {
    return leaves_bad_steps_out() && compiled_.optimizer.verdict(replica).left_out;
  }
  /// The same of replicas that take turns, between two runs; `wait` for what has not come.
  void agree_in_turn(std::span<const std::unique_ptr<Tally>> each, int64_t step, bool wait);
  /// Counts a step, and shows it when that is due; `totals` are those of replica 0.
  void stepped(const Epoch& epoch, int64_t step, const Totals& totals);
  /// Steps of all workers, of this training, and samples of this epoch, where they are not one's
  /// own.
  void count_steps(int64_t all) noexcept { history_.steps = all; }
  void count_images(int64_t all) noexcept { since_.images = all; }

  bool ends(const Totals& totals) const {
    return totals.signal != 0 || totals.stop != Stop::no ||
           (totals.bad_step >= 0 && options_.on_nan != OnNan::go_on);
  }
  /// Servers look at each gradient themselves.
  bool leaves_bad_steps_out() const {
    return options_.on_nan != OnNan::go_on &&
           compiled_.optimizer.updater().parts().client == nullptr;
  }
  bool leaves_out(const Totals& totals) const {
    return totals.bad_step >= 0 && leaves_bad_steps_out();
  }
  /// Steps that devices have left out since the first bad one were counted as they were queued: no
  /// more. Between runs.
  void take_back_left_out(const Epoch& epoch, const Totals& totals);
  /// Throws what callbacks, losses and signals ask for. Every replica agrees on `totals`.
  void raise(const Epoch& epoch, const Totals& totals);
  /// Before its update, what a replica's own bad step asks for: where they take turns nobody waits
  /// for it.
  void raise_in_turn(const Epoch& epoch, const Totals& own);

  int64_t steps_until_pause(const Epoch& epoch, int64_t done) const;
  /// Between two runs, for the watchers: where shares have moved, what comes from step `next` on is
  /// cut anew.
  void before_steps(Epoch& epoch, int64_t next);
  void save_between(const Epoch& epoch, const std::vector<Totals>& each);

  // ---- for a StepBody ----
  Model::State& model() const noexcept { return model_; }
  const Compiled& compiled() const noexcept { return compiled_; }
  uint64_t seed() const noexcept { return seed_; }
  const LabelWeights& label_weights() const noexcept { return label_weights_; }
  const StepWatchers& watchers() const noexcept { return watchers_; }
  /// Calls `work`; what it throws names the step, and the sample where it can.
  void at_place(const ReplicaContext& replica, const Epoch& epoch, const DistributedBatch& batch,
                const std::function<void()>& work) const;
  Divisors divisors_of(const DistributedBatch& batch, const StepInput& input) const {
    return {static_cast<double>(batch.group_size(options_.accumulate)), input.counted};
  }
  /// What goes to the other replicas with the update to come.
  void tell(const ReplicaContext& replica, const Totals& totals);
  /// What of a batch is there to look at.
  struct Seen {
    const BatchParts& parts;
    const Tensors& outputs;  ///< undefined where they were not read
    const Tensors& losses;   ///< of the samples, for each goal; empty: they are computed again
  };
  /// The losses so far; those of a batch that are not finite are noted.
  void look_at_loss(const BatchOfStep& of, const Seen& seen, Totals& totals);
  void found_not_finite(const ReplicaContext& replica, const Epoch& epoch,
                        const DistributedBatch& batch, const Seen& seen, Totals& totals);
  bool says_what_is_bad(const ReplicaContext& replica, const DistributedBatch& batch,
                        const Totals& totals) const;
  [[noreturn]] static void throw_without_graph();

 private:
  Position begin();
  void run_epoch(const EpochPlan& plan);
  void end_epoch(const Epoch& epoch, const Totals& all, const std::vector<Totals>& each,
                 double seconds);
  std::optional<Totals> train_epoch(Epoch& epoch, std::vector<Totals>& each);
  void read_ahead(const Epoch& epoch, int64_t first_step);
  StepInput input_of(ReplicaContext& replica, const Epoch& epoch, int64_t first, int64_t end);
  /// What rank 0's callbacks and progress see of the totals of its first rank.
  const Totals& shown(const Totals& own) const { return way_.bodies[0]->shown(own); }
  void tell_all(ReplicaContext& replica, const Epoch& epoch, int64_t step, Tally& tally,
                int together);
  void learn(int local, Tally& tally, int64_t bad_step, int64_t known);
  int64_t samples_of(const Epoch& epoch, int64_t step) const;
  int64_t images_after(const Epoch& epoch, int64_t step) const;
  void say_what_is_not_planned() const;
  void tell_begun();
  void scale_rate();
  StepWatchers all_watchers();
  void take_pace();
  void agree();
  void say_who_trains() const;
  std::shared_ptr<const World> world_now() const;
  void speak(bool shows);
  int asked_to_end() const { return preemption_.asked(); }

  // ---- checkpoints ----
  void take_up_checkpoints();
  KeptParts parts();
  void go_on();
  CheckpointManifest facts() const;
  CheckpointManifest manifest_now() const;
  CheckpointManifest manifest_within(const Epoch& epoch) const;
  Scores validate(const Epoch& epoch, const std::vector<Totals>& each);
  void save_asked(const Epoch& epoch, const std::vector<Totals>& each);
  void save_after(const Epoch& epoch);
  std::vector<Totals> first_totals(const Epoch& epoch);

  // ---- errors ----
  [[noreturn]] void raise_out_of_memory(const ReplicaContext& replica, const Epoch& epoch,
                                        const DistributedBatch& batch,
                                        const c10::OutOfMemoryError& error) const;
  std::string place_words(const ReplicaContext& replica, const Epoch& epoch, int64_t step) const;
  void raise_not_finite(const Epoch& epoch, int64_t step);
  void look_at_parameters(const Epoch& epoch);
  std::string bad_on_any_rank() const;
  void complain(const std::string& what) const;
  std::string first_not_finite(const ReplicaContext& replica, const Epoch& epoch,
                               const DistributedBatch& batch, const Seen& seen) const;

  /// How replicas train in the world as it is: chosen anew where that changes.
  struct Way {
    std::unique_ptr<Pace> pace{};
    std::vector<std::unique_ptr<StepBody>> bodies{};  ///< by local replica
    int64_t generation = -1;                          ///< of the world
  };
  struct Since {
    TimePoint epoch{};
    TimePoint step{};
    int64_t images = 0;  ///< of this epoch
  };
  struct Shown {
    bool here = false;  ///< on this worker
    std::optional<Progress> progress{};
    NamedValues values{};               ///< of the last epoch
    std::vector<std::string> recipe{};  ///< a line about each part of it
  };
  struct NotFinite {
    bool ended = false;                ///< the training, by a loss (OnNan::end)
    std::vector<std::string> first{};  ///< such tensor of this epoch, by local replica
  };
  struct Saved {
    CheckpointManifest facts{};
    std::optional<CheckpointManifest> resumed{};  ///< until its epoch goes on
    std::vector<Totals> totals{};  ///< by local replica, that a checkpoint has or had
    std::optional<Checkpointing> checkpoints{};
  };

  Model::State& model_;
  Compiled& compiled_;
  data::Dataset train_;
  std::shared_ptr<data::Loader> loader_;
  FitOptions options_;
  uint64_t seed_;
  LabelWeights label_weights_;
  std::string asked_;
  int64_t number_ = 0;  ///< of this fit() among those of the process, from 1; 0: one batch
  CountedInput counted_;
  Course course_;
  int64_t servers_at_ = 0;  ///< updates that parameter servers had before this process
  Way way_;
  Shown shown_;
  std::optional<CallbackRunner> callbacks_;
  StepWatchers watchers_;
  History history_;
  Since since_;
  PreemptionHandler preemption_;
  NotFinite not_finite_;
  Saved saved_;  // of all that stands before it
};

}  // namespace tutti::detail
