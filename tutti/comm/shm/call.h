/// What a rank announces of an operation, and who gives what to whom in it.
/// Pure. Thread rule: any thread.
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <span>

#include "tutti/comm/engine/detail/call.h"

namespace tutti::detail {

/// One part a rank, one behind the other: equal, or as counts say.
struct Parts {
  std::span<const int64_t> counts{};
  int64_t equal = 0;

  int64_t count(int rank) const { return counts.empty() ? equal : counts[rank]; }
  /// Elements before the part of `rank`.
  int64_t begin(int rank) const {
    return counts.empty() ? rank * equal
                          : std::accumulate(counts.begin(), counts.begin() + rank, int64_t{0});
  }
  int64_t largest() const {
    return counts.empty() ? equal : *std::max_element(counts.begin(), counts.end());
  }
};

/// The parts of input (reduce_scatter, scatter, all_to_all) or output (all_gather, gather).
Parts parts_of(const Operation& operation, int size);
/// What all_to_all receives.
Parts received_parts_of(const Operation& operation, int size);

/// What ranks compare and look at before data moves.
struct Announced {
  int64_t num_elements = 0;   ///< equal on all ranks; 0 for all_to_all with counts
  MemorySpan visible{};       ///< this rank's memory that others have to see
  int64_t largest_bytes = 0;  ///< the most that any rank has to show; -1 when nobody knows
};
Announced announced_of(const Operation& operation, int rank, int size);

/// Whether `rank` gives data to others, and whether it needs data of others, in chunks.
bool stages(const Operation& operation, int rank) noexcept;
bool drains(const Operation& operation, int rank) noexcept;

}  // namespace tutti::detail
