/// SnapshotWriter: writes partitions of a cut to disk, in a thread of its own while training goes
/// on.
///
/// docs/formats/snapshot.md describes the files. Thread rule: one thread, that of the server.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "tutti/ps/partition/cut.h"

namespace tutti::ps {

/// Writes the files of `partition` of a complete cut to its folder, which is there, and syncs them.
/// Returns what a manifest says of them: JSON. Throws Error: disk full, pieces that do not belong
/// to one step.
std::string write_partition(PartitionCut& cut, int partition);

class SnapshotWriter {
 public:
  /// `wake` is called from the writer's thread when take_written() has something.
  explicit SnapshotWriter(std::function<void()> wake);
  /// Waits for the one that is being written; the others are given up.
  ~SnapshotWriter();
  SnapshotWriter(const SnapshotWriter&) = delete;

  void add(int partition, std::shared_ptr<PartitionCut> cut);
  /// What has been written since the last call, as messages for the view service (Kind::written).
  std::vector<Message> take_written();

 private:
  struct Job {
    int partition = 0;
    std::shared_ptr<PartitionCut> cut;  // its memory is let go of in the server's thread
    Message written;
  };
  void work();

  const std::function<void()> wake_;
  std::mutex mutex_;  // guards what follows up to thread_
  std::condition_variable changed_;
  bool ends_ = false;
  std::deque<Job> waiting_;
  std::vector<Job> written_;
  std::thread thread_;
};

}  // namespace tutti::ps
