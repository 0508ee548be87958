/// Fit: one call of Model::fit(). Shared by fit.cpp (the loop), checkpoints.cpp (what of it
/// is kept on disk) and errors.cpp (what is wrong with it); not for users. Thread rule: one
/// thread, that of its strategy.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "tutti/ps/client/client.h"
#include "tutti/train/checkpointing/detail/checkpointing.h"
#include "tutti/train/fit/detail/callback_runner.h"
#include "tutti/train/fit/detail/core_watch.h"
#include "tutti/train/model/detail/model_state.h"

namespace tutti::detail {

/// One call of fit(): the state of its loop.
class Fit {
 public:
  Fit(Model::State& model, data::Dataset train, FitOptions options);
  History run();
  Totals run_batch();

 private:
  struct Epoch {
    int64_t number;
    int64_t first_update;  ///< of the optimizer: dropout never draws a step's numbers twice
    int64_t steps;
    std::shared_ptr<const data::Epoch> data;
    World world;
    int64_t first_step = 0;  ///< those before it were done before a snapshot
  };

  void run_epoch(Epoch epoch);
  /// What all have added up, after what the local replicas have.
  Totals train_epoch(const Epoch& epoch, std::vector<Totals>& each);
  PerReplica<Totals> replicas_at_once(const Epoch& epoch);
  PerReplica<Totals> replicas_in_turn(const Epoch& epoch);
  Totals workers_by_lease(const Epoch& epoch);
  int64_t next_lease(ReplicaContext& replica, const Epoch& epoch, Totals part, int64_t done);
  void be_slow(const Epoch& epoch, int64_t step, TimePoint begin) const;
  void step(ReplicaContext& replica, const Forward& forward, const Epoch& epoch, int64_t step,
            Totals& totals);
  void train_on(ReplicaContext& replica, const Forward& forward, const Epoch& epoch,
                const DistributedBatch& batch, Totals& totals);
  /// Forward of one batch, with what it adds up; the loss to minimise.
  at::Tensor loss_of(ReplicaContext& replica, const Forward& forward, const Epoch& epoch,
                     const DistributedBatch& batch, at::TensorList columns, Totals& totals);
  int64_t step_after(const Epoch& epoch, int64_t step) const;
  void agree(ReplicaContext& replica, const Epoch& epoch, int64_t step, Totals& totals);
  void after_step(ReplicaContext& replica, const Epoch& epoch, int64_t step, Totals& totals);
  int64_t images_after(const Epoch& epoch, int64_t step) const;
  void stepped(const Epoch& epoch, int64_t step, const Totals& totals);
  void speak(bool shows);
  int asked_to_end() const;

  // ---- checkpoints ----
  void take_up_checkpoints();
  int64_t go_on();
  CheckpointManifest facts() const;
  std::vector<double> loss_scale() const;
  TrainingState state_now() const;
  TrainingState state_within(const Epoch& epoch, const std::vector<Totals>& each) const;
  Scores validate(const Epoch& epoch, const std::vector<Totals>& each);
  int64_t steps_until_pause(const Epoch& epoch, int64_t done) const;
  void save_between(const Epoch& epoch, const std::vector<Totals>& each);
  void save_asked(const Epoch& epoch, const std::vector<Totals>& each);
  void save_after(const Epoch& epoch);
  std::vector<Totals> first_totals(const Epoch& epoch);

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

  // ---- errors ----
  std::string place_words(const ReplicaContext& replica, const Epoch& epoch, int64_t step) const;
  [[noreturn]] static void throw_without_graph();
  /// Throws what callbacks, losses and signals ask for. Every replica agrees on `totals`.
  void raise(const Epoch& epoch, const Totals& totals);
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
  int64_t epoch_length_;          ///< steps, each of so many batches as are accumulated
  bool drops_ = false;            ///< whoever is late is left out
  int64_t begin_ = 0;             ///< steps in all that were done before a snapshot
  ps::Client* leases_ = nullptr;  ///< workers are not in step: batches come from here
  ps::Lease lease_;               ///< the last
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
  int64_t steps_before_ = 0;             // of this training, before the first of the epoch
  bool ended_ = false;                   // by a loss that was not finite (OnNan::end)
  std::vector<std::string> not_finite_;  // by local replica, of this epoch: the first such tensor
  bool looked_at_ = false;               // a first run() has ended, which looks for mistakes
};

}  // namespace tutti::detail
