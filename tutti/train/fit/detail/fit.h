/// Fit: one call of Model::fit(). Shared by fit.cpp (the loop over epochs), step.cpp (what a
/// replica does in a step), checkpoints.cpp (what of it is kept on disk) and errors.cpp (what is
/// wrong with it); how replicas go through the steps of an epoch is a Pace's. Not for users. Thread
/// rule: one thread, that of its strategy, but where a function takes a replica: that one's.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "tutti/train/checkpointing/detail/checkpointing.h"
#include "tutti/train/fit/detail/callback_runner.h"
#include "tutti/train/fit/detail/core_watch.h"
#include "tutti/train/fit/detail/pace.h"
#include "tutti/train/fit/detail/position.h"
#include "tutti/train/model/detail/model_state.h"

namespace tutti::detail {

/// What a Pace trains.
struct Epoch : EpochPlan {
  std::shared_ptr<const data::Epoch> data;
  std::shared_ptr<const World> world;
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
  int64_t version() const { return compiled_.optimizer.version(); }

  /// One replica's part of a step, which adds up in `totals`: forward, backward, update.
  void step(ReplicaContext& replica, const Forward& forward, const Epoch& epoch, int64_t step,
            Totals& totals);
  /// What the chief's callbacks decide after a step; by replica 0, before agree().
  void after_step(ReplicaContext& replica, const Epoch& epoch, int64_t step, Totals& totals);
  /// The same where replicas take turns: there is nothing to agree on.
  void after_step_of_all(const Epoch& epoch, int64_t step, Totals& totals);
  /// `together` replicas end at the same step; 1: each by itself.
  void agree(ReplicaContext& replica, const Epoch& epoch, int64_t step, Totals& totals,
             int together);
  /// Counts a step, and shows it when that is due; `totals` are those of replica 0.
  void stepped(const Epoch& epoch, int64_t step, const Totals& totals);
  /// Steps of all workers, of this training, and samples of this epoch, where they are not one's
  /// own.
  void count_steps(int64_t all) noexcept { history_.steps = all; }
  void count_images(int64_t all) noexcept { epoch_images_ = all; }

  bool ends(const Totals& totals) const {
    return totals.signal != 0 || totals.stop != Stop::no ||
           (totals.bad_step >= 0 && options_.on_nan != OnNan::go_on);
  }
  /// Servers look at each gradient themselves.
  bool leaves_bad_steps_out() const {
    return options_.on_nan != OnNan::go_on && compiled_.optimizer.updater().client() == nullptr;
  }
  bool leaves_out(const Totals& totals) const {
    return totals.bad_step >= 0 && leaves_bad_steps_out();
  }
  /// Throws what callbacks, losses and signals ask for. Every replica agrees on `totals`.
  void raise(const Epoch& epoch, const Totals& totals);

  int64_t steps_until_pause(const Epoch& epoch, int64_t done) const;
  void save_between(const Epoch& epoch, const std::vector<Totals>& each);

 private:
  Position begin();
  void run_epoch(const EpochPlan& plan);
  void end_epoch(const Epoch& epoch, const Totals& all, const std::vector<Totals>& each,
                 double seconds);
  std::optional<Totals> train_epoch(const Epoch& epoch, std::vector<Totals>& each);
  void be_slow(const Epoch& epoch, int64_t step, TimePoint begin) const;
  void train_on(ReplicaContext& replica, const Forward& forward, const Epoch& epoch,
                const DistributedBatch& batch, Totals& totals);
  /// Forward of one batch, with what it adds up; the loss to minimise.
  at::Tensor loss_of(ReplicaContext& replica, const Forward& forward, const Epoch& epoch,
                     const DistributedBatch& batch, at::TensorList columns, Totals& totals);
  int64_t images_after(const Epoch& epoch, int64_t step) const;
  void say_what_is_not_planned() const;
  void take_pace();
  void speak(bool shows);
  int asked_to_end() const;

  // ---- checkpoints ----
  void take_up_checkpoints();
  void go_on();
  CheckpointManifest facts() const;
  std::vector<double> loss_scale() const;
  TrainingState state_now() const;
  TrainingState state_within(const Epoch& epoch, const std::vector<Totals>& each) const;
  Scores validate(const Epoch& epoch, const std::vector<Totals>& each);
  void save_asked(const Epoch& epoch, const std::vector<Totals>& each);
  void save_after(const Epoch& epoch);
  std::vector<Totals> first_totals(const Epoch& epoch);

  // ---- errors ----
  std::string place_words(const ReplicaContext& replica, const Epoch& epoch, int64_t step) const;
  [[noreturn]] static void throw_without_graph();
  void raise_not_finite(const Epoch& epoch, int64_t step);
  void look_at_parameters(const Epoch& epoch);
  void complain(const std::string& what) const;
  std::string first_not_finite(ReplicaContext& replica, const Epoch& epoch,
                               const DistributedBatch& batch, const BatchParts& parts,
                               const Tensors& outputs) const;
  void found_not_finite(ReplicaContext& replica, const Epoch& epoch, const DistributedBatch& batch,
                        const BatchParts& parts, const Tensors& outputs, Totals& totals);

  Model::State& model_;
  Compiled& compiled_;
  data::Dataset train_;
  FitOptions options_;
  uint64_t seed_;
  int64_t number_ = 0;  ///< of this fit() among those of the process, from 1; 0: one batch
  bool meets_;          ///< replicas without samples take part in forward
  bool shows_;
  Course course_;
  int64_t servers_at_ = 0;  ///< updates that parameter servers had before this process
  std::unique_ptr<Pace> pace_;
  int64_t generation_ = -1;  ///< of the world that it is of
  std::optional<Progress> progress_;
  CoreWatch cores_;
  std::optional<CallbackRunner> callbacks_;
  std::optional<Checkpointing> checkpoints_;
  CheckpointManifest facts_;
  std::optional<TrainingState> resumed_;  // until its epoch goes on
  NamedValues last_values_;               // of the last epoch
  History history_;
  TimePoint last_{};
  TimePoint fit_begin_ = Clock::now();
  TimePoint epoch_begin_{};
  int64_t epoch_images_ = 0;
  bool ended_ = false;                   // by a loss that was not finite (OnNan::end)
  std::vector<std::string> not_finite_;  // by local replica, of this epoch: the first such tensor
};

}  // namespace tutti::detail
