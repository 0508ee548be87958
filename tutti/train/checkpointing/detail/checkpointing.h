/// Checkpointing: what one training, fit() or a loop of one's own, does about checkpoints: it
/// copies the state between two steps, has it written beside the training, and puts a written one
/// back. Not for users.
///
/// Thread rule: the thread of the training, between runs. All public functions but due(),
/// due_after_epoch(), next_pause() and summary() are collective over workers.
#pragma once

#include <cstdint>
#include <exception>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tutti/base/folder_lock.h"
#include "tutti/checkpoint/manifest.h"
#include "tutti/checkpoint/state.h"
#include "tutti/data/safetensors.h"
#include "tutti/strategy/membership/membership.h"
#include "tutti/sync/world.h"
#include "tutti/train/callbacks/checkpoint_options.h"
#include "tutti/train/watch/detail/kept.h"

namespace tutti::detail {

/// Whose checkpoints they are. What it refers to lives as long.
struct TrainingPlace {
  std::string who;  ///< begins what is said: "fit"
  const World& world;
  const Membership& members;
  std::function<bool()> asked_to_end;  ///< this worker, by a signal or since its time is up
  /// Returns when parameters are of one version, and there; throws when they cannot be.
  std::function<void()> require_whole = [] {};
  /// Called on the chief, in lay_beside().
  std::function<void(const std::filesystem::path& folder)> lay_beside = [](const auto&) {};
};

class Checkpointing {
 public:
  /// Takes the folder. Throws UsageError: another job has it, it cannot be written to, workers see
  /// different ones. `parts` are all of the training, in the order in which they are put back.
  Checkpointing(TrainingPlace place, CheckpointOptions options, KeptParts parts);
  /// Waits for what is being written.
  ~Checkpointing();
  Checkpointing(const Checkpointing&) = delete;

  /// The newest checkpoint that is whole, put back into all parts; none where there is none. `now`
  /// is what this training is: throws UsageError for what does not go on from it, field by field;
  /// DataError when all checkpoints are damaged.
  std::optional<CheckpointManifest> resume(CheckpointManifest now);
  /// TrainingPlace::lay_beside: behind resume(), for an earlier training's lies there.
  void lay_beside();

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
  /// still being written, for options.disk_limit from its begin on; is that one not on disk then,
  /// this one is left out, which the log says. Who is asked to end meanwhile returns without it,
  /// to save after the next step; in a last one, with normal priority, options.grace goes on then.
  /// Returns whether that step is on disk, or on its way.
  bool save(CheckpointManifest manifest, Priority priority);
  /// Returns true once it is on disk; false when it could not be written, or not before
  /// options.grace had passed, which the log says.
  bool save_in_grace(CheckpointManifest manifest);
  /// Waits for the last one, as save() does; removes all of them where options say so. Returns why
  /// the last one is not on disk, on the chief's worker; "" where it is.
  std::string end();

  /// For people; "" on all workers but the chief's.
  std::string summary() const;

  /// Updates until due() the next time.
  int64_t next_pause(int64_t step) const noexcept;

 private:
  class Writer;
  void start(CheckpointManifest manifest, TimePoint begin, Priority priority);
  Deadline disk_deadline() const;

  // ---- waiting (waiting.cpp): collective, for a disk and not for each other ----
  struct Meeting {
    int busy_worker = -1;    ///< the last that has to wait for its disk; -1: none
    int failed_worker = -1;  ///< the last that could not write its part
    bool asked = false;      ///< one was asked to end
    bool late = false;       ///< on one the deadline has passed
  };
  Meeting meet(const Meeting& own);
  enum class Waited { ready, asked, late };
  enum class WhenAsked {
    give_way,  ///< to what is saved after the next step
    grace,     ///< goes on for options.grace
    go_on
  };
  /// Until `ready` is on all workers, which returns whether it is, after the time it is given at
  /// the latest. All return the same.
  Waited wait_together(const std::function<bool(Millis)>& ready, Deadline deadline,
                       WhenAsked when_asked, const std::string& what);
  /// Until nothing is being written any more.
  Waited wait_for_writers(const Deadline& deadline, WhenAsked when_asked);
  /// Of all that is saved once one was asked to end: it begins with the first call.
  Deadline grace();
  bool has_failed() const;
  /// `work` in a thread of its own, as long as the disk may take before the first step; nothing
  /// where it is empty. Returns what it has thrown here. Throws Timeout, on all. The thread may
  /// outlive this.
  std::exception_ptr on_disk(const std::string& what, std::function<void()> work);

  void take_folder();
  std::string why_lost(bool written) const;
  void remove_at_end();
  void add_words(CheckpointManifest& manifest) const;
  NamedTensors own_tensors() const;
  /// Whether `read` goes on as `now`; nothing is put back yet.
  void check(const CheckpointRead& read, const CheckpointManifest& now) const;
  void agree_on_failure(const std::exception_ptr& own) const;
  double sum_over_workers(double own) const;
  int worker() const noexcept { return place_.world.process(); }
  int num_workers() const noexcept { return place_.world.processes(); }

  const TrainingPlace place_;
  const CheckpointOptions options_;
  const KeptParts parts_;
  std::shared_ptr<FolderLock> lock_;  // of the chief's worker
  int64_t lock_number_ = 0;
  std::unique_ptr<Writer> writer_;
  /// What is being written; its memory serves one checkpoint after another.
  std::shared_ptr<data::SafetensorsImage> image_ = std::make_shared<data::SafetensorsImage>();
  int64_t wanted_step_ = -1;  // of the last save()
  int64_t last_step_ = -1;    // that was saved
  TimePoint last_begin_{};    // when it began to be written
  int busy_worker_ = -1;      // that the last wait was for
  std::optional<Deadline> grace_;
};

}  // namespace tutti::detail
