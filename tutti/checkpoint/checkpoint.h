/// TrainingCheckpoint: a whole training in a folder of its own, as it is read.
///
/// FOLDER/step-000000000400/ has manifest.json and one safetensors file a worker
/// (docs/formats/checkpoint.md). What its tensors are of knows tutti/train/checkpointing.
/// Thread rule: const functions may be called from any thread.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/checkpoint/manifest.h"
#include "tutti/checkpoint/state.h"
#include "tutti/data/safetensors.h"

namespace tutti {

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

/// Parameters and merged buffers of a checkpoint, as Model::save() would have written them then; of
/// a loop of one's own with several models under their names, "critic/0.weight".
std::vector<data::NamedArray> weights_of(const TrainingCheckpoint& checkpoint);
/// Under which name a loop of one's own added its model, where it has one; else "".
std::string model_of_loop(const CheckpointManifest& manifest);
/// Rows of embedding tables, as SparseTables::state() has given them; manifest().tables are of
/// which.
CheckpointTensors table_rows_of(const TrainingCheckpoint& checkpoint);

namespace detail {

/// A buffer as Model::save() writes it: floating ones are means in the order of the replicas,
/// others replica 0's.
Array merged_buffer(const std::string& name, const CheckpointTensors& tensors,
                    const CheckpointManifest& manifest, std::string_view which);

}  // namespace detail

}  // namespace tutti
