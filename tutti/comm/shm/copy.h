/// Copies of spans that may be empty, and so without an address.
/// Thread rule: any thread.
#pragma once

#include <cstddef>
#include <cstring>

#include "tutti/base/dtype.h"

namespace tutti::detail {

inline std::byte* bytes_of(const MemorySpan& span) { return static_cast<std::byte*>(span.data); }

inline void copy_bytes(void* to, const void* from, int64_t bytes) {
  if (bytes > 0 && to != from) std::memcpy(to, from, static_cast<size_t>(bytes));
}

}  // namespace tutti::detail
