/// SnapshotWriter: writes partitions of a cut to disk, in a thread of its own while training goes
/// on.
///
/// docs/formats/snapshot.md describes the files. Thread rule: one thread, that of the server.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tutti/base/deadline.h"
#include "tutti/ps/partition/cut.h"
#include "tutti/store/disk_thread.h"

namespace tutti::ps {

/// Writes the files of `partition` of a complete cut to its folder, which is there, and syncs them.
/// Returns what a manifest says of them: JSON. Throws Error: disk full, pieces that do not belong
/// to one step.
std::string write_partition(PartitionCut& cut, int partition);

class SnapshotWriter {
 public:
  /// `wake` is called from the writer's thread when take_written() has something.
  /// farewell  how long the end of this waits for what is being written: a disk may hang
  explicit SnapshotWriter(std::function<void()> wake, Millis farewell = Millis{10'000});
  /// The others are given up.
  ~SnapshotWriter();
  SnapshotWriter(const SnapshotWriter&) = delete;

  /// What waits of an earlier cut is given up: nobody waits for it any more.
  void add(int partition, std::shared_ptr<PartitionCut> cut);
  /// What has been written since the last call, as messages for the view service (Kind::written).
  std::vector<Message> take_written();

 private:
  void let_go();

  const Millis farewell_;
  int64_t newest_ = -1;                              // number of a cut
  std::vector<std::shared_ptr<PartitionCut>> cuts_;  // let go of in the server's thread
  std::vector<Message> written_;
  store::DiskThread disk_;
};

}  // namespace tutti::ps
