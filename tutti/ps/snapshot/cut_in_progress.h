/// CutInProgress: what the view service waits for until a cut of the whole job is on disk, and what
/// makes it give up: a server that leads a partition is lost, a worker goes, or the partitions turn
/// out not to be of one moment (cut_part.h). Pure: no disk, no clock. Thread rule: one thread.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "tutti/ps/partition/cut_part.h"
#include "tutti/ps/view/view.h"

namespace tutti::ps {

class CutInProgress {
 public:
  /// Of all partitions, by the primaries of `view`.
  CutInProgress(int64_t number, const View& view) : number_(number), begun_in_(view), last_(view) {}

  int64_t number() const noexcept { return number_; }
  /// A partition is on disk, or is not; what is said of another cut changes nothing.
  ///
  /// message  Message::Kind::written
  void on_written(const Message& message);
  /// A server that leads a partition was lost: it may have had the cut, its backup has not. A
  /// worker has gone: its mark may have come to some partitions and not to others.
  void on_view(const View& view);

  /// Why it is given up; "": it is not.
  const std::string& failure() const noexcept { return failure_; }
  /// Whether nobody was lost: a worker that had done what there was to do has gone meanwhile.
  bool in_order() const noexcept { return in_order_; }
  bool complete() const { return failure_.empty() && missing().empty(); }
  /// Of a complete one: steps that it has; not synchronous, of the partition that has most, since
  /// gradients that are not finite are left out where they are.
  int64_t step() const;
  /// What a user is to know of a complete one; "": nothing. Not synchronous, the last steps of a
  /// worker that was lost may have reached some partitions and not others.
  std::string remark() const;
  std::vector<int> missing() const;
  /// What was said of each partition (write_partition()).
  const std::map<int, std::string>& written() const noexcept { return written_; }

 private:
  const ProcessView* lost_worker() const;

  const int64_t number_;
  const View begun_in_;
  View last_;
  std::map<int, std::string> written_;  // by partition
  std::vector<CutPart> parts_;          // of those
  std::string failure_;
  bool in_order_ = false;
};

}  // namespace tutti::ps
