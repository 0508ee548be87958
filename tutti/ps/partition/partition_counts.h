/// What partitions have counted, and what they go on from, as text. Thread rule: plain values.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/ps/spec/staleness.h"

namespace tutti::ps {

struct PartitionCounts {
  int64_t pushes = 0;      ///< orders carried out that brought gradients
  int64_t updates = 0;     ///< steps whose gradients were applied: of one worker, or of a round
  int64_t dropped = 0;     ///< pushes that came after their round
  int64_t not_finite = 0;  ///< pushes left out for their values
  StalenessHistogram staleness;
  int64_t sparse_rows = 0;   ///< of embedding tables, now
  int64_t sparse_bytes = 0;  ///< of memory that those take, on the server that was asked
};

/// Text, and back. Throws Error for a text that is none.
std::string to_text(const PartitionCounts& counts);
PartitionCounts counts_from(std::string_view text);

/// What a partition goes on from beside its pieces: the last assign of a job that goes on from a
/// snapshot. Rows of tables come before it, in messages numbered from 1 on in `sequence`.
struct Restored {
  int64_t num_chunks = 0;  ///< of rows
  int64_t step = 0;        ///< synchronous: the next one of every worker
  PartitionCounts counts;
  std::vector<int64_t> tables;  ///< their versions
  std::string cursor;           ///< Cursor::to_text(), of partition 0; "": none
};

std::string to_text(const Restored& restored);
Restored restored_from(std::string_view text);

}  // namespace tutti::ps
