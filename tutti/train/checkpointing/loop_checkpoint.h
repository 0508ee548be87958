/// Checkpoint: what a loop of one's own keeps on disk, so that it goes on after whatever ended it.
///
///   tutti::Checkpoint checkpoint(strategy, {.folder = "runs/loop", .every_steps = 100,
///                                           .resume = true});
///   int64_t step = 0, epoch = 0, in_epoch = 0;  // all that the loop counts
///   checkpoint.add("net", net).add("adam", optimizer);
///   checkpoint.add("step", step).add("epoch", epoch).add("in_epoch", in_epoch);
///   checkpoint.restore();
///   for (; epoch < epochs; ++epoch, in_epoch = 0)
///     for (auto&& batch : data.epoch(epoch, in_epoch)) {
///       ...
///       ++in_epoch;
///       checkpoint.after_step(++step);  // saves where it is time, and where it is asked to end
///     }
///   checkpoint.end();
///
/// Files, retention, lock and grace are those of fit() (docs/guide/checkpoints.md): each worker
/// writes its share beside the loop, a checkpoint is there whole or not at all, one job has the
/// folder. A loop that has added all that it changes from step to step goes on with the same bits.
///
/// Thread rule: one thread, outside of Strategy::run. What is marked collective is called by all
/// workers, in one order, with the same names and numbers.
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tutti/base/preemption.h"
#include "tutti/strategy/modules/replicated.h"
#include "tutti/strategy/values/variable.h"
#include "tutti/train/callbacks/checkpoint_options.h"

namespace torch::optim {
class LRScheduler;
}

namespace tutti {

class DistributedOptimizer;

class Checkpoint {
 public:
  /// Of a loop over a Strategy whose workers are in step. An empty folder: no checkpoints; then
  /// after_step() only ends the loop where that is asked for. UsageError, with a folder, for shares
  /// that move, by speed or as a file says.
  Checkpoint(Strategy strategy, CheckpointOptions options, PreemptionOptions preemption = {});
  /// Of a loop whose ranks, one a process, have a group (join()), with a DistributedOptimizer or
  /// without. Models and optimizers have the same values on all ranks, buffers those of the rank.
  Checkpoint(Group group, CheckpointOptions options, PreemptionOptions preemption = {});
  /// Of a loop of one process.
  explicit Checkpoint(CheckpointOptions options, PreemptionOptions preemption = {});
  /// Waits for what is being written.
  ~Checkpoint();
  Checkpoint(const Checkpoint&) = delete;

  // ---- what is kept; before restore() and the first step ----
  //
  // `name` is [A-Za-z0-9_.-]+, and the thing's alone: else UsageError, as for what is added too
  // late. All are referred to, and must live as long as this. Generators of replicas, and
  // LibTorch's default one of the CPU, are kept by themselves; not its default ones of devices,
  // from which modules there draw in a loop without a Strategy.

  /// Parameters, and the buffers of each replica. UsageError on a mesh where several ranks compute
  /// a replica.
  Checkpoint& add(const std::string& name, const ReplicatedModules& modules);
  /// What it has updated so far: its states, learning rate and version, scale of losses, embedding
  /// tables, what compression holds back. Other options of its rule, clipping and groups are the
  /// program's, and not compared. The modules that it trains come before it. UsageError with
  /// parameter servers, which keep snapshots.
  Checkpoint& add(const std::string& name, Optimizer& optimizer);
  /// A module of LibTorch: of a loop without a Strategy.
  Checkpoint& add(const std::string& name, torch::nn::Module& module);
  /// SGD, Adam, AdamW, RMSprop, Adagrad, or one that saves itself as these do: options of its
  /// groups, learning rates among them, which then are those of the checkpoint; and its states, as
  /// tensors by the names that parameters have in the modules added before. UsageError for LBFGS,
  /// which LibTorch cannot save.
  Checkpoint& add(const std::string& name, torch::optim::Optimizer& optimizer);
  /// The same of the optimizer that it wraps, and what compression of gradients holds back.
  Checkpoint& add(const std::string& name, DistributedOptimizer& optimizer);
  /// How many steps it has made; the rates are in its optimizer.
  Checkpoint& add(const std::string& name, torch::optim::LRScheduler& scheduler);
  Checkpoint& add(const std::string& name, Variable& variable);
  /// Tensors and numbers of the loop, the same on every worker: Mismatch in save() where numbers
  /// are not. Tensors keep shape and dtype.
  Checkpoint& add(const std::string& name, at::Tensor& tensor);
  Checkpoint& add(const std::string& name, int& number);
  Checkpoint& add(const std::string& name, int64_t& number);
  Checkpoint& add(const std::string& name, double& number);
  /// One number for each local replica, or this rank's alone: what each adds up in an epoch.
  Checkpoint& add_own(const std::string& name, std::vector<double>& each);

  // ---- going on ----

  /// Puts the newest whole checkpoint back into all that was added; the steps that it has. None
  /// where there is none yet, where `resume` is not set (but for lives after the first of a job
  /// under `tutti run --restarts`), without a folder. Nothing is changed before all workers know
  /// that names, kinds, shapes and dtypes of all of it fit. Collective.
  ///
  /// Throws UsageError: another job has the folder, an earlier loop has left checkpoints there and
  /// `resume` is not set, workers see different folders; or names and kinds, replicas, seed are
  /// not those of this loop, each in a line. DataError: models or tensors do not fit, each name
  /// with both shapes; all checkpoints are damaged (one that is is set aside as damaged-step-N, and
  /// the one before is used). A worker that cannot read what others read is named by its own
  /// error, and the others end with it. Where the folder could not be taken, what comes later
  /// throws the same.
  std::optional<int64_t> restore();

  using Values = std::map<std::string, double>;

  /// After each step: `step` (>= 1, ascending) of them are done. Saves where every_steps says so,
  /// with `values` for best_kept. Where a worker is asked to end (PreemptionOptions) all workers
  /// save this step, within `grace`, and throw Interrupted, whose exit code is 143 (130 of Ctrl-C).
  /// Collective. Mismatch, on all, where workers have other steps; UsageError where `resume` is set
  /// and restore() was not called.
  void after_step(int64_t step, const Values& values = {});
  /// The same save at once: after an epoch, say; `step` >= that of the last after_step(). Returns
  /// while it is being written, or at once where that step was saved already. Throws as after_step;
  /// it does not end the loop. Collective.
  void save(int64_t step, const Values& values = {});
  /// Saves the last step, where that was not done or had to give way, and waits until it is on
  /// disk. Returns why it is not there, on the chief; "" where it is. Collective.
  std::string end();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace tutti
