/// SnapshotFolder: the folder of a job's snapshots on disk: a cut is made under a name of its own,
/// and appears under that of a snapshot once all of it is there.
///
/// Every call waits for the disk. Thread rule: one thread at a time.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <string>

#include "tutti/base/deadline.h"
#include "tutti/base/folder_lock.h"
#include "tutti/store/numbered_folder.h"

namespace tutti::ps {

struct SnapshotOptions {
  std::filesystem::path folder;  ///< that all servers and worker 0 see; "": no snapshots
  Millis every{0};               ///< from one to the next; 0: at the end of the job alone
  int kept = 2;                  ///< the newest so many
  Millis disk_limit{600'000};    ///< for the disk's answer, before the job begins
  /// The job goes on from this one (find_snapshot()); "": it begins anew.
  std::filesystem::path goes_on_from;
};

class SnapshotFolder {
 public:
  /// Makes the folder, and removes what a job that died was about to write. Throws UsageError: it
  /// cannot be written to; another job writes there; it has snapshots of another job, which this
  /// one does not go on from and would come to delete.
  explicit SnapshotFolder(const SnapshotOptions& options);

  /// Name of the newest snapshot when the job began; "": there was none.
  const std::string& newest_of_before() const noexcept { return newest_; }
  /// Number of the first cut of this job.
  int64_t first_number() const noexcept { return first_number_; }

  /// Makes the folder of a cut: its absolute path. Throws Error, also when the folder has become
  /// another job's.
  std::string make(int64_t number);
  /// Makes a snapshot of a cut of which all partitions are on disk: its bytes, without the
  /// manifest's. Throws Error; also when `wanted` says, at last, that nobody waits for it.
  ///
  /// step     of the manifest
  /// written  what was said of each partition (write_partition())
  int64_t show(int64_t number, int64_t step, const std::map<int, std::string>& written,
               const std::function<bool()>& wanted);
  /// What there is of a cut that was given up goes, where the folder is still this job's.
  void remove(int64_t number) const;
  /// All but the newest go. What cannot be listed just now stays, and the log says so.
  void remove_old() const;

 private:
  const SnapshotOptions options_;
  const store::NumberedFolder cuts_;
  FolderLock lock_;
  int64_t first_number_ = 1;
  std::string newest_;
};

}  // namespace tutti::ps
