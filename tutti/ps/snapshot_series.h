/// SnapshotSeries: the snapshots of a job in their folder, one after another, as the view service
/// has them made: a cut begins when it is time, appears under its name once all of it is on disk,
/// and takes the place of the oldest.
///
/// Thread rule: one thread at a time.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "tutti/base/deadline.h"
#include "tutti/base/folder_lock.h"
#include "tutti/base/log.h"
#include "tutti/ps/cut_in_progress.h"

namespace tutti::ps {

struct SnapshotOptions {
  std::filesystem::path folder;  ///< that all servers and worker 0 see; "": no snapshots
  Millis every{0};               ///< from one to the next; 0: at the end of the job alone
  int kept = 2;                  ///< the newest so many
  /// The job goes on from this one (find_snapshot()); "": it begins anew.
  std::filesystem::path goes_on_from;
};

class SnapshotSeries {
 public:
  /// Makes the folder, and removes what a job that died was about to write. Throws UsageError: it
  /// cannot be written to; another job writes there; it has snapshots of another job, which this
  /// one does not go on from and would come to delete.
  explicit SnapshotSeries(const SnapshotOptions& options);

  /// Whether a cut is in progress, and whether it is time for the next.
  bool busy() const noexcept { return cut_.has_value(); }
  bool due(TimePoint now) const;
  /// Begins a cut by `view`: what workers are to be told; nothing when its folder cannot be made,
  /// which the log says.
  std::optional<Message> begin(const View& view, TimePoint now);
  /// Message::Kind::written; view; time goes on. The log says how a cut ends: the new snapshot with
  /// its step, or why there is none, and that the one before stays.
  void on_written(const Message& message, TimePoint now);
  void on_view(const View& view, TimePoint now);
  void look_after(TimePoint now);
  /// Gives up the cut in progress, if there is one; the log says so. What is written of it goes,
  /// where the folder is still this job's.
  void give_up(const std::string& why, TimePoint now, LogLevel level = LogLevel::warning);
  /// What was told at begin(), for a worker that comes meanwhile.
  const Message& told() const noexcept { return told_; }

 private:
  std::filesystem::path partial() const;
  void end_if_over(TimePoint now);
  void finish(TimePoint now);
  bool has_folder() const;
  void remove_old() const;

  const SnapshotOptions options_;
  FolderLock lock_;
  int64_t next_number_ = 1;
  std::string newest_;  // name of the last that is complete
  TimePoint next_{};    // 0: `every` after the first look
  TimePoint begun_at_{};
  std::optional<CutInProgress> cut_;
  Message told_;
};

}  // namespace tutti::ps
