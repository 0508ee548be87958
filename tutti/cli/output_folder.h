/// OutputFolder: the folder of --out, which is one job's at a time, whatever the strategy.
///
/// Who starts the job takes it before work starts: the process that starts the workers, else worker
/// 0. Thread rule: the main thread alone.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tutti/base/folder_lock.h"

namespace tutti::cli {

class OutputFolder {
 public:
  static constexpr const char* kLockFile = ".lock";

  /// Makes and takes it, in those processes that have to. "": there is none, and nothing is done.
  /// Throws UsageError: another job has it (process and host), it cannot be made.
  explicit OutputFolder(const std::string& folder);

  /// NAME=value for workers that this process starts: by which they know whose it is.
  std::vector<std::string> environment() const;

  /// In a worker, once all have met: from now on it knows the lock that worker 0 took.
  void know();

  /// Before something is written into it. A folder that was removed meanwhile is made again, with
  /// its lock, and a warning says so. Throws UsageError when another job has it by now.
  void keep();

 private:
  std::string folder_;
  std::optional<FolderLock> lock_;
  int64_t number_ = 0;  // of the job's lock, whichever process has it; 0: not known
};

}  // namespace tutti::cli
