/// Parts of spans, and copies of those that may be empty, and so without an address.
/// Thread rule: any thread.
#pragma once

#include <cstdint>
#include <cstring>
#include <numeric>
#include <span>

#include "tutti/base/dtype.h"

namespace tutti::detail {

inline std::byte* bytes_of(const MemorySpan& span) { return static_cast<std::byte*>(span.data); }

inline void copy_bytes(void* to, const void* from, int64_t bytes) {
  if (bytes > 0 && to != from) std::memcpy(to, from, static_cast<size_t>(bytes));
}

/// Elements [begin, begin + count).
inline MemorySpan part_of(const MemorySpan& span, int64_t begin, int64_t count) {
  return {bytes_of(span) + begin * size_of(span.dtype), count, span.dtype, span.place};
}

/// What belongs to `rank` of `size`, one behind the other: equal parts, or as long as counts say.
inline MemorySpan part_of(const MemorySpan& whole, std::span<const int64_t> counts, int rank,
                          int size) {
  const int64_t equal = whole.num_elements / size;
  if (counts.empty()) return part_of(whole, equal * rank, equal);
  const auto own = counts.begin() + rank;
  return part_of(whole, std::accumulate(counts.begin(), own, int64_t{0}), *own);
}

}  // namespace tutti::detail
