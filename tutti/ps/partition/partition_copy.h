/// PartitionCopy: all that a partition knew at one moment, chunk by chunk, for a server that joins.
///
/// Costs little to make, whatever the partition's size: memory is shared, and copied on write while
/// the copy holds it. Rows of embedding tables are read when their chunk is asked for, so that who
/// sends a large table can do something else in between. Thread rule: one thread.
#pragma once

#include <deque>
#include <optional>

#include "tutti/ps/values/sparse_shard.h"
#include "tutti/ps/wire/message.h"

namespace tutti::ps {

class PartitionCopy {
 public:
  /// The next chunk, for PartitionState::take(); nothing once all were given.
  std::optional<Message> next();

 private:
  friend class PartitionState;
  void add(std::string text, Bytes payload = {});

  int partition_ = 0;
  std::deque<Message> ready_;
  std::optional<SparseShardCopy> rows_;
  std::deque<Message> last_;  // behind the rows
};

}  // namespace tutti::ps
