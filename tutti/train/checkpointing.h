/// Checkpointing: what one fit() does about checkpoints: it copies the state between two steps, has
/// it written beside the training, and puts a written one back. Not for users.
///
/// Thread rule: the thread of fit(), between runs. All public functions but due() are collective
/// over workers.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tutti/train/checkpoint.h"
#include "tutti/train/model_state.h"

namespace tutti::detail {

/// What a training was, beside the model: taken into a checkpoint, and put back.
struct TrainingState {
  CheckpointManifest manifest;
  std::vector<Totals> totals;             ///< of the epoch that goes on, by local replica
  std::vector<std::vector<double>> rows;  ///< of History
  KeptWeights kept;                       ///< what CallbackRunner::keep_weights() remembers
};

class Checkpointing {
 public:
  /// Takes the folder. Throws UsageError: another job has it, it cannot be written to, workers see
  /// different ones, some of the state cannot be saved (servers, embedding tables).
  Checkpointing(Model::State& model, CheckpointOptions options);
  /// Waits for what is being written.
  ~Checkpointing();
  Checkpointing(const Checkpointing&) = delete;

  /// The newest checkpoint that is whole, put back into model and optimizer; none where there is
  /// none. `now` is what this training is: throws UsageError for what does not go on from it, field
  /// by field; DataError when all checkpoints are damaged.
  std::optional<TrainingState> resume(const CheckpointManifest& now);

  /// Whether one is wanted after so many updates; and after an epoch with so many.
  bool due(int64_t step) const noexcept {
    return options_.every_steps > 0 && step % options_.every_steps == 0;
  }
  bool due_after_epoch(int64_t step) const noexcept {
    return options_.every_steps == 0 || options_.best_kept > 0 || due(step);
  }

  /// Of the thread that writes.
  enum class Priority {
    idle,    ///< replicas train meanwhile, and come first
    normal,  ///< everybody waits for it
  };

  /// Copies the state, and returns while it is being written. Waits before for the one that is
  /// still being written.
  void save(TrainingState state, Priority priority);
  /// Returns true once it is on disk; false when it could not be written, or not before
  /// options.grace had passed, which the log says.
  bool save_in_grace(TrainingState state);
  /// Waits for the last one; removes all of them where options say so.
  void end();

  /// For people; "" on all workers but the chief's.
  std::string summary() const;

  /// Updates until due() the next time.
  int64_t next_pause(int64_t step) const noexcept;

 private:
  class Writer;
  bool start(TrainingState state, const Deadline& deadline, Priority priority);
  void take_folder();
  void require_unused() const;
  int64_t choose() const;
  NamedTensors own_tensors(const TrainingState& state) const;
  TrainingState put_back(const TrainingCheckpoint& checkpoint, const CheckpointManifest& now);
  void put_back_buffers(const std::map<std::string, Array>& tensors,
                        const CheckpointManifest& manifest);
  void put_back_generators(const std::map<std::string, Array>& tensors,
                           const CheckpointManifest& manifest);
  Array buffer_of(int local, const std::string& name, const std::map<std::string, Array>& tensors,
                  const CheckpointManifest& manifest, const char* which) const;
  KeptWeights kept_in(const std::map<std::string, Array>& tensors,
                      const CheckpointManifest& manifest) const;
  int worker() const;
  int num_workers() const;

  Model::State& model_;
  const CheckpointOptions options_;
  std::optional<CheckpointLock> lock_;
  std::unique_ptr<Writer> writer_;
  /// What is being written; its memory serves one checkpoint after another.
  std::shared_ptr<data::SafetensorsImage> image_ = std::make_shared<data::SafetensorsImage>();
  int64_t last_step_ = -1;  // that was saved
};

}  // namespace tutti::detail
