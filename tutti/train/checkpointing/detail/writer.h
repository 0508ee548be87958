/// Writes checkpoints beside the training, one at a time; not for users.
/// Thread rule: one thread calls; another one writes.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "tutti/base/deadline.h"
#include "tutti/checkpoint/parts.h"
#include "tutti/checkpoint/retention.h"
#include "tutti/store/disk_thread.h"
#include "tutti/train/checkpointing/detail/checkpointing.h"

namespace tutti::detail {

class Checkpointing::Writer {
 public:
  /// disk_limit  for the parts of other workers, once the own one is on disk
  /// limit       for them once the training has ended, perhaps since one of them has died
  Writer(std::filesystem::path folder, CheckpointRetention retention, Millis disk_limit,
         Millis limit);
  /// Waits for what is being written, unless it was abandoned.
  ~Writer();

  /// Begins to write; nothing is being written before. `begin` is when the training began to wait.
  /// `arrive`, where there is one, waits for what is still on its way to the part's image; the
  /// thread that writes calls it first. What goes wrong is a warning: the checkpoint before stays.
  void start(CheckpointPart part, CheckpointManifest manifest, TimePoint begin, Priority priority,
             std::function<void()> arrive);
  /// Whether something is being written.
  bool busy();
  /// What is being written yields to nobody any more.
  void hurry();
  /// Whether nothing is being written any more, at the latest at the deadline.
  bool wait(const Deadline& deadline);
  /// Whether this worker's part of the last one, and on the chief all of it, is on disk.
  bool last_is_whole();
  /// That a worker has no part to give: the chief's wait for it ends.
  void told_of_failure(int worker);
  /// That all other workers have written theirs.
  void told_of_all_parts();
  /// Nobody waits for what is being written any more: its disk had its time.
  void abandon();
  /// "12 checkpoints in ...; the training waited 2.1 ms for each ..."; "" where none was written.
  std::string summary() const;

 private:
  struct Shared;
  bool abandoned_ = false;
  std::shared_ptr<Shared> shared_;         // with the thread, which may outlive this on a dead disk
  std::optional<store::DiskThread> disk_;  // from the first checkpoint on
};

}  // namespace tutti::detail
