/// Checkpoints: whole trainings as folders that appear complete or not at all, whatever dies when.
///
/// FOLDER/step-000000000400/ has manifest.json and one safetensors file a worker
/// (docs/formats/checkpoint.md). Until all parts are on disk the folder is called
/// .step-000000000400.partial; then it is renamed. No LibTorch here: what the tensors are of knows
/// checkpointing.h. Thread rule: const functions may be called from any thread.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "tutti/base/deadline.h"
#include "tutti/base/file_descriptor.h"
#include "tutti/data/safetensors.h"

namespace tutti {

/// A file of a checkpoint, and what it must be.
struct CheckpointFile {
  std::string name;
  int64_t bytes = 0;
  std::string sha256;
};

/// Where a training was, and what it was.
struct CheckpointManifest {
  int64_t step = 0;           ///< updates of this training
  int64_t version = 0;        ///< of the optimizer: with those of trainings before
  int64_t epoch = 0;          ///< that goes on, from 0
  int64_t step_in_epoch = 0;  ///< steps of it that are done
  bool ended = false;         ///< a callback ended the training here

  // What decides on the order of samples, and on bits.
  uint64_t seed = 0;
  int64_t global_batch = 0;
  int64_t accumulate = 1;
  int64_t num_samples = 0;
  int64_t steps_per_epoch = 0;
  std::string strategy;
  int replicas = 1;
  int workers = 1;
  std::string reduction_shape;
  int threads_per_replica = 1;

  std::string samples_sha256;  ///< of the first few of epoch 0

  std::string optimizer;          ///< UpdaterState::kind
  std::string optimizer_options;  ///< in words; those of a torch optimizer are in its state
  double learning_rate = 0;
  std::string compression;             ///< of gradients, in words
  std::string schedule;                ///< its name; "": none
  std::vector<double> schedule_rates;  ///< at some steps
  std::string losses;                  ///< with their weights, metrics and class_weight
  std::string precision;
  /// LossScale: value, good steps, skipped; empty: losses are not scaled.
  std::vector<double> loss_scale;
  std::vector<std::string> metrics;

  // History so far.
  std::vector<std::string> columns;
  int64_t first_epoch = 0;
  int64_t images = 0;
  double train_seconds = 0;
  double validation_seconds = 0;
  /// Of the last epoch that ended, without those that are not finite.
  std::map<std::string, double> values;

  /// State of the callbacks that have one, by their place and name: ("0 early_stopping", text).
  std::map<std::string, std::string> callbacks;

  std::string tutti_version;
  std::string libtorch_version;
  std::vector<CheckpointFile> files;
  std::map<std::string, std::string> places;  ///< of each tensor: its file

  std::string to_json() const;
  /// Throws DataError naming `path` when it is no manifest, or not what was written; UsageError
  /// when it is one of another format.
  static CheckpointManifest from_json(std::string_view text, const std::filesystem::path& path);
};

/// "step-000000000400"
std::string name_of_checkpoint(int64_t step);

/// Checkpoints in `folder`, the oldest first; none when it is not there or empty. One that has lost
/// its manifest is among them.
std::vector<std::filesystem::path> trainings_in(const std::filesystem::path& folder);

/// Those that were set aside, since they were not whole.
std::vector<std::filesystem::path> damaged_trainings_in(const std::filesystem::path& folder);
/// Gives one that is not whole such a name, and returns it. Throws
/// std::filesystem::filesystem_error.
std::filesystem::path set_aside(const std::filesystem::path& checkpoint);

/// Whether `path` is a checkpoint itself.
bool is_training(const std::filesystem::path& path);

/// A complete checkpoint, for reading.
class TrainingCheckpoint {
 public:
  /// Reads the manifest. Throws DataError.
  explicit TrainingCheckpoint(std::filesystem::path path);

  const std::filesystem::path& path() const noexcept { return path_; }
  const CheckpointManifest& manifest() const noexcept { return manifest_; }

  /// Reads every file against the manifest. Throws DataError naming the first that is missing or is
  /// not what was written: got and expected.
  void verify() const;
  /// All tensors by name; mapped, not copied. Throws DataError.
  std::map<std::string, Array> tensors() const;

 private:
  std::filesystem::path path_;
  CheckpointManifest manifest_;
};

/// Parameters and merged buffers of a checkpoint, as Model::save() would have written them then.
std::vector<data::NamedArray> weights_of(const TrainingCheckpoint& checkpoint);

namespace detail {

/// A buffer as Model::save() writes it: floating ones are means in the order of the replicas,
/// others replica 0's.
Array merged_buffer(const std::string& name, const std::map<std::string, Array>& tensors,
                    const CheckpointManifest& manifest, std::string_view which);

}  // namespace detail

/// The right to write into a folder, as long as it lives: of one job at a time.
class CheckpointLock {
 public:
  /// Makes the folder, takes it, and removes what a job that died was about to write. Throws
  /// UsageError: somebody has it (pid and host are named), it cannot be written to.
  explicit CheckpointLock(const std::filesystem::path& folder);
  /// Another at each start: by which workers see that they have the same folder.
  int64_t number() const noexcept { return number_; }
  /// The number of the lock in `folder`; 0 when there is none.
  static int64_t number_in(const std::filesystem::path& folder);

 private:
  FileDescriptor held_;
  int64_t number_ = 0;
};

/// Which checkpoints stay: the newest, and the best by one of CheckpointManifest::values.
struct CheckpointRetention {
  int newest = 3;
  int best = 0;
  std::string monitor = {};
  bool higher_is_better = false;
};

/// One worker's part of a checkpoint.
struct CheckpointPart {
  std::filesystem::path folder;
  int64_t step = 0;
  int worker = 0;
  int workers = 1;
  std::vector<std::string> tensors;  ///< names
  std::shared_ptr<const data::SafetensorsImage> image;
};

/// Writes it. Throws Error with path and cause.
void write_part(const CheckpointPart& part);

/// What worker 0 does then: waits for the parts of all, names them in the manifest, and gives the
/// checkpoint its name. Returns its bytes. Throws Error; Timeout that names the worker whose part
/// is not there.
int64_t complete_checkpoint(const CheckpointPart& own, CheckpointManifest manifest,
                            const Deadline& deadline);

/// Removes complete checkpoints that need not stay, the newest never.
void remove_old_checkpoints(const std::filesystem::path& folder,
                            const CheckpointRetention& retention);

/// Removes what of a checkpoint has been written; no error when it cannot be.
void give_up_checkpoint(const std::filesystem::path& folder, int64_t step) noexcept;

}  // namespace tutti
