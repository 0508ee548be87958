/// Checkpoints: whole trainings as folders that appear complete or not at all, whatever dies when.
///
/// FOLDER/step-000000000400/ has manifest.json and one safetensors file a worker
/// (docs/formats/checkpoint.md). Until all parts are on disk the folder is called
/// .step-000000000400.partial; then it is renamed. No LibTorch here: what the tensors are of knows
/// checkpointing.h. Thread rule: const functions may be called from any thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "tutti/base/deadline.h"
#include "tutti/base/folder_lock.h"
#include "tutti/checkpoint/manifest.h"
#include "tutti/checkpoint/state.h"
#include "tutti/data/safetensors.h"

namespace tutti {

/// "step-000000000400"
std::string name_of_checkpoint(int64_t step);

/// Checkpoints in `folder`, the oldest first; none when it is not there or empty. One that has lost
/// its manifest is among them. Throws IoError when it cannot be listed just now, UsageError when
/// this user may not: so do all that look for them.
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
  /// Reads the manifest. Throws DataError where it is damaged; what it cannot read just now is an
  /// IoError, and no damage: so do all that read.
  explicit TrainingCheckpoint(std::filesystem::path path);

  const std::filesystem::path& path() const noexcept { return path_; }
  const CheckpointManifest& manifest() const noexcept { return manifest_; }

  /// Reads every file against the manifest, and checks tensors(). Throws DataError naming the first
  /// that is missing or is not what was written: got and expected.
  void verify() const;
  /// All tensors by name; mapped, not copied. Throws DataError where they are not those that the
  /// manifest speaks of (require_sound_state).
  CheckpointTensors tensors() const;

 private:
  std::filesystem::path path_;
  CheckpointManifest manifest_;
};

/// Parameters and merged buffers of a checkpoint, as Model::save() would have written them then.
std::vector<data::NamedArray> weights_of(const TrainingCheckpoint& checkpoint);
/// Rows of embedding tables, as SparseTables::state() has given them; manifest().tables are of
/// which.
CheckpointTensors table_rows_of(const TrainingCheckpoint& checkpoint);

namespace detail {

/// A buffer as Model::save() writes it: floating ones are means in the order of the replicas,
/// others replica 0's.
Array merged_buffer(const std::string& name, const CheckpointTensors& tensors,
                    const CheckpointManifest& manifest, std::string_view which);

}  // namespace detail

/// Removes what was about to be written, but for that of step `but_of`. The folder is the caller's
/// (FolderLock), and nothing else is being written.
void remove_unfinished_checkpoints(const std::filesystem::path& folder, int64_t but_of = -1);

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
  std::weak_ptr<FolderLock> lock;  ///< worker 0's on the folder, as long as it has it
  int64_t lock_number = 0;         ///< its number, which all workers know
};

/// Writes it, and calls `turn` as write_file_atomically() does. Worker 0 makes the folder again
/// where somebody has removed it (FolderLock::keep), the others wait for that; and it removes parts
/// of other steps that came after they were given up. Throws Error with path and cause; UsageError
/// when the folder is another job's by now.
void write_part(const CheckpointPart& part, const std::function<void()>& turn = {});

/// What worker 0 hears of the others while it waits for their parts. Any thread.
struct PartNews {
  std::atomic<int> without = -1;          ///< a worker that has none to give; below 0: none
  std::atomic<bool> all_written = false;  ///< what is not there by now does not come any more
};

/// What worker 0 does then: waits for the parts of all, names them in the manifest, and gives the
/// checkpoint its name. Returns its bytes. Throws Error; Timeout that names the worker whose part
/// is not there.
int64_t complete_checkpoint(const CheckpointPart& own, CheckpointManifest manifest,
                            const Deadline& deadline, const PartNews& news);

/// Removes complete checkpoints that need not stay, the newest never; none when one whose value is
/// asked for cannot be read just now (IoError, UsageError).
void remove_old_checkpoints(const std::filesystem::path& folder,
                            const CheckpointRetention& retention);

/// Removes what of a checkpoint has been written, where the folder is still the job's; no error
/// when it cannot be.
void give_up_checkpoint(const CheckpointPart& part) noexcept;

}  // namespace tutti
