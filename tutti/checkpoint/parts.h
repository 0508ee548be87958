/// How a checkpoint comes to be: each worker writes its part, worker 0 waits for all, writes the
/// manifest and gives the folder its name. docs/design/checkpoints.md.
///
/// Whatever dies when, a checkpoint appears whole or not at all. Thread rule: the thread that
/// writes; PartNews from any.
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tutti/base/deadline.h"
#include "tutti/base/folder_lock.h"
#include "tutti/checkpoint/manifest.h"
#include "tutti/data/safetensors.h"

namespace tutti {

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
  /// What is not there by then is not waited for: the training has ended, perhaps since whose part
  /// it is has died.
  std::atomic<TimePoint> until = TimePoint::max();
};

/// What worker 0 does then: waits for the parts of all, names them in the manifest, and gives the
/// checkpoint its name. Returns its bytes. Throws Error; Timeout that names the worker whose part
/// is not there.
int64_t complete_checkpoint(const CheckpointPart& own, CheckpointManifest manifest,
                            const Deadline& deadline, const PartNews& news);

}  // namespace tutti
