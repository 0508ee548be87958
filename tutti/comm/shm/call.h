/// What a rank announces of an operation, what ranks compare, and how it is told in words.
/// Pure. Thread rule: any thread.
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <span>
#include <string>

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

bool has_counts(const Operation& operation) noexcept;
/// A number that differs where lists of counts do.
uint64_t fingerprint(std::span<const int64_t> counts) noexcept;
/// The same list on every rank, so one that ranks compare; empty for all_to_all.
std::span<const int64_t> common_counts(const Operation& operation) noexcept;

/// Whether `rank` gives data to others, and whether it needs data of others, in chunks.
bool stages(const Operation& operation, int rank) noexcept;
bool drains(const Operation& operation, int rank) noexcept;

/// Collective, reduction, dtype, root and flags in one word, and back as words.
uint32_t pack_call(const Operation& operation) noexcept;
std::string call_words(uint32_t call, int64_t num_elements);

}  // namespace tutti::detail
