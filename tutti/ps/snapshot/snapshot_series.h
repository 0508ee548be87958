/// SnapshotSeries: the snapshots of a job, one after another, as the view service has them made: a
/// cut begins when it is time, is a snapshot once all of it is on disk, and takes the place of the
/// oldest.
///
/// It waits for no disk: that is done in a thread of its own, and a disk that does not answer costs
/// the cut in progress. Thread rule: one thread at a time.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "tutti/base/deadline.h"
#include "tutti/base/log.h"
#include "tutti/ps/snapshot/cut_in_progress.h"
#include "tutti/ps/snapshot/snapshot_folder.h"
#include "tutti/store/disk_thread.h"

namespace tutti::ps {

class SnapshotSeries {
 public:
  /// Takes the folder, and throws, as SnapshotFolder.
  ///
  /// wake  called in another thread when process() has something
  explicit SnapshotSeries(const SnapshotOptions& options, std::function<void()> wake = [] {});
  /// Settles, 10 seconds at most.
  ~SnapshotSeries();
  SnapshotSeries(const SnapshotSeries&) = delete;

  /// Whether a cut is in progress, and whether it is time for the next.
  bool busy() const noexcept { return cut_.has_value(); }
  bool due(TimePoint now) const;
  /// Begins a cut by `view`. Without a folder for it there is none, which the log says.
  void begin(const View& view, TimePoint now);
  /// Takes what the disk has done. Returns the cut that is to be told now: it has its folder.
  std::optional<Message> process();
  /// Waits until the disk has done all, and takes that; whether it has by then.
  bool settle(const Deadline& deadline);
  /// Message::Kind::written; view; time goes on. The log says how a cut ends: the new snapshot with
  /// its step, or why there is none, and that the one before stays.
  void on_written(const Message& message, TimePoint now);
  void on_view(const View& view, TimePoint now);
  void look_after(TimePoint now);
  /// Gives up the cut in progress, if there is one; the log says so. What is written of it goes,
  /// where the folder is still this job's.
  void tidy_up(std::function<void(const SnapshotFolder&)> work);
  void give_up(const std::string& why, TimePoint now, LogLevel level = LogLevel::warning);
  /// What is told of the cut in progress, also to a worker that comes meanwhile.
  const std::optional<Message>& told() const noexcept { return told_; }

 private:
  enum class Stage { gets_folder, is_written, is_shown };

  template <class Work, class Then>
  void on_disk(Work work, Then then);
  bool in_progress(int64_t number) const { return cut_ && cut_->number() == number; }
  void end_if_over(TimePoint now);
  void show();
  void on_shown(int64_t number, int64_t bytes);
  void end_cut(TimePoint now);
  std::string what_is_missing() const;

  const Millis every_;
  const std::shared_ptr<SnapshotFolder> folder_;  // with the disk's thread, which may outlive this
  int64_t next_number_;
  std::string newest_;  // name of the last that is complete
  TimePoint next_{};    // 0: `every` after the first look
  TimePoint begun_at_{};
  std::optional<CutInProgress> cut_;
  Stage stage_ = Stage::gets_folder;           // of that
  std::shared_ptr<std::atomic<bool>> wanted_;  // it is
  std::optional<Message> told_;
  bool to_tell_ = false;
  store::DiskThread disk_;
};

}  // namespace tutti::ps
