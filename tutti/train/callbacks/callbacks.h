/// Callbacks: what happens beside the training at its begin and end, after steps and epochs.
///
/// They run on the chief, on the thread of its first replica, and on every worker where they ask
/// for it. What they decide on the chief (stop, a learning rate, weights to save, keep or put back)
/// is carried out on every replica after the same step; the same call on another worker does
/// nothing. One that throws ends the training on all: Error with epoch, step and "callback NAME:
/// ...". Where workers do not meet in every step (parameter servers out of step, with late steps
/// dropped, with workers that may be lost) they may only watch: a decision is a UsageError.
#pragma once

#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/train/callbacks/checkpoint_options.h"
#include "tutti/train/report/progress.h"

namespace tutti {

namespace detail {
class Kept;
}

/// What a callback knows, and what it may decide.
class Training {
 public:
  virtual ~Training() = default;

  virtual int64_t epoch() const = 0;          ///< the running one, from 0
  virtual int64_t epochs() const = 0;         ///< those asked for
  virtual int64_t step() const = 0;           ///< updates of this fit() so far
  virtual int64_t epoch_steps() const = 0;    ///< of the running epoch, in all
  virtual int64_t epoch_step() const = 0;     ///< of it so far, with those before a checkpoint
  virtual int64_t epoch_samples() const = 0;  ///< that this fit() trained of it, over all replicas
  /// Names of what values() has after an epoch; "val_..." only where that one was validated.
  virtual const std::vector<std::string>& quantities() const = 0;
  /// Loss and metrics. After an epoch: of all samples, with those of the validation data ("loss",
  /// "accuracy", "val_loss", ...). After a step: of what this replica has seen in this epoch;
  /// on a device of what the host has got of it, which is some steps behind.
  virtual const NamedValues& values() = 0;
  /// The value of that name; UsageError with the nearest one.
  double at(std::string_view name);
  /// None where this epoch has no such value, since it was not validated.
  std::optional<double> watch(std::string_view name);
  virtual double learning_rate() const = 0;

  /// The training ends after this step, or epoch; `why` is logged.
  virtual void stop(std::string why) = 0;
  /// From the next update on.
  virtual void set_learning_rate(double learning_rate) = 0;
  /// write_file_atomically(), but that a disk which fails costs this file and not the training: a
  /// warning, and unless a later write of it does better the file is among History::lost.
  virtual void write(const std::filesystem::path& path, std::string_view text) = 0;
  // These three are UsageErrors in on_step_end, where replicas are in the middle of an epoch.
  /// After an epoch: Model::save(); where the disk fails, as write().
  virtual void save(std::filesystem::path path) = 0;
  /// After an epoch: remembers the weights, in memory; and gives them back at the end of fit().
  virtual void keep_weights() = 0;
  virtual void put_back_weights() = 0;
};

/// What a callback knows of an evaluation (Model::evaluate(), the validation of fit()) or a
/// prediction.
struct PassFacts {
  int64_t batches = 0;   ///< of the pass
  int64_t samples = 0;   ///< of the pass, of all replicas
  int64_t batch = 0;     ///< the running one, from 0; at the end: all
  NamedValues values{};  ///< at the end of an evaluation: loss and metrics of all samples
};

class Callback {
 public:
  virtual ~Callback() = default;
  virtual std::string_view name() const = 0;
  /// Whether it runs on every worker, not on the chief alone; the same answer always.
  virtual bool on_every_worker() const { return false; }
  virtual void on_train_begin(Training&) {}
  virtual void on_epoch_begin(Training&) {}
  virtual void on_step_begin(Training&) {}  ///< before an update; a rate set here is this step's
  virtual void on_step_end(Training&) {}
  virtual void on_epoch_end(Training&) {}  ///< validation included
  virtual void on_train_end(Training&) {}  ///< not after an error

  // Evaluation, and prediction of datasets. A step is a batch of which this worker's first replica
  // has computed its part; on a device it may still be computing. What these throw ends the pass
  // after its last batch, on all workers.
  virtual void on_test_begin(const PassFacts&) {}
  virtual void on_test_step_begin(const PassFacts&) {}
  virtual void on_test_step_end(const PassFacts&) {}
  virtual void on_test_end(const PassFacts&) {}
  virtual void on_predict_begin(const PassFacts&) {}
  virtual void on_predict_step_begin(const PassFacts&) {}
  virtual void on_predict_step_end(const PassFacts&) {}
  virtual void on_predict_end(const PassFacts&) {}

  /// What it must know again where the training goes on from a checkpoint: text of its own, which
  /// restore() gets back after on_train_begin(). UTF-8; "": nothing. Asked of the chief alone,
  /// since a training may go on with other workers; one that runs on every worker gets it back on
  /// each.
  virtual std::string state() const { return {}; }
  virtual void restore(const std::string& state) { (void)state; }
  /// Tensors of its own in checkpoints of fit(); not for users.
  virtual std::unique_ptr<detail::Kept> kept();
  /// FitOptions::checkpoints, where that has none.
  virtual std::optional<CheckpointOptions> checkpoints() const { return std::nullopt; }
};

using Callbacks = std::vector<std::shared_ptr<Callback>>;

namespace callbacks {

/// Watches one quantity over the epochs.
struct EarlyStoppingOptions {
  std::string monitor = "val_loss";
  double min_delta = 0;  ///< >= 0: smaller changes do not count as better
  int64_t patience = 0;  ///< >= 0 epochs without an improvement that are endured
  Better better = Better::by_name;
  std::optional<double> baseline{};   ///< what is not better than this does not count either
  bool restore_best_weights = false;  ///< at the end, whatever ends it
  int64_t start_from_epoch = 0;       ///< epochs before it are not watched
};
std::shared_ptr<Callback> early_stopping(EarlyStoppingOptions options = {});

struct ModelCheckpointOptions {
  std::filesystem::path path;  ///< "{epoch}" is the epoch from 1, "{val_loss}" a value, 4 digits
  std::string monitor = "val_loss";
  bool save_best_only = false;
  Better better = Better::by_name;
};
/// Saves weights after epochs (Model::save). Whole trainings that are to go on: fit's checkpoints.
std::shared_ptr<Callback> model_checkpoint(ModelCheckpointOptions options);

/// Goes on where a run of the same program was cut off: keeps checkpoints in `folder`, and removes
/// them once the training has come to its end (Keras's BackupAndRestore). Longer-lived ones:
/// FitOptions::checkpoints.
struct BackupAndRestoreOptions {
  std::filesystem::path folder;
  int64_t every_steps = 0;  ///< 0: after each epoch
  bool remove_at_end = true;
};
std::shared_ptr<Callback> backup_and_restore(BackupAndRestoreOptions options);

/// Before each epoch: learning_rate = schedule(epoch from 0, learning rate now).
std::shared_ptr<Callback> learning_rate_scheduler(
    std::function<double(int64_t epoch, double learning_rate)> schedule);

struct ReduceOnPlateauOptions {
  std::string monitor = "val_loss";
  double factor = 0.1;      ///< in (0, 1): of the learning rate
  int64_t patience = 10;    ///< >= 0
  double min_delta = 1e-4;  ///< >= 0
  int64_t cooldown = 0;     ///< >= 0 epochs after a reduction in which nothing is counted
  double min_learning_rate = 0;
  Better better = Better::by_name;
};
std::shared_ptr<Callback> reduce_on_plateau(ReduceOnPlateauOptions options = {});

/// A line an epoch: "epoch,learning_rate,loss,...", written as it goes on, numbers as short as they
/// read back exactly. `append` adds to a file that is there.
std::shared_ptr<Callback> csv_logger(std::filesystem::path path, bool append = false);

/// Event files that TensorBoard shows (observe/tensorboard.h), with the tags of Keras: "epoch_loss"
/// and so on in folder/train, those of the validation data in folder/validation,
/// "epoch_learning_rate" beside the first; by epoch from 0.
std::shared_ptr<Callback> tensorboard(std::filesystem::path folder);

/// What fit() shows with verbose = 1, wherever it is wanted: a bar on a terminal, else lines now
/// and then, and a line an epoch. `out` stays the caller's.
std::shared_ptr<Callback> progress_bar(std::FILE* out = stdout);

/// Ends the training, with its history so far, when a loss is not finite. Needs on_nan = go_on.
std::shared_ptr<Callback> terminate_on_nan();

/// Functions as a callback.
struct LambdaOptions {
  std::function<void(Training&)> on_train_begin{};
  std::function<void(Training&)> on_epoch_begin{};
  std::function<void(Training&)> on_step_begin{};
  std::function<void(Training&)> on_step_end{};
  std::function<void(Training&)> on_epoch_end{};
  std::function<void(Training&)> on_train_end{};
  std::function<void(const PassFacts&)> on_test_begin{};
  std::function<void(const PassFacts&)> on_test_step_begin{};
  std::function<void(const PassFacts&)> on_test_step_end{};
  std::function<void(const PassFacts&)> on_test_end{};
  std::function<void(const PassFacts&)> on_predict_begin{};
  std::function<void(const PassFacts&)> on_predict_step_begin{};
  std::function<void(const PassFacts&)> on_predict_step_end{};
  std::function<void(const PassFacts&)> on_predict_end{};
  bool on_every_worker = false;
};
std::shared_ptr<Callback> lambda(std::string name, LambdaOptions functions);

}  // namespace callbacks
}  // namespace tutti
