/// Compute: memory and threads of a server, as what holds parameters gets them.
///
/// Thread rule: one thread, that of the server; `for_each` may use others meanwhile.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

#include "tutti/base/dtype.h"

namespace tutti::ps {

struct Compute {
  /// Memory on a 64-byte line, not cleared, that lives as long as the last copy.
  std::function<std::shared_ptr<std::byte>(int64_t bytes)> allocate;
  /// Counts memory that is taken in another way, in bytes; negative: given back. From any thread.
  /// Throws Error, and counts nothing, where a limit or the machine has no room.
  std::function<void(int64_t bytes)> charge;
  /// Runs fn(0) to fn(count - 1), in any order and on any threads, and returns when all are done.
  /// `fn` must not throw.
  std::function<void(int64_t count, const std::function<void(int64_t)>& fn)> for_each;

  /// Plain memory, one thread: the caller's, whichever that is.
  static Compute plain();
};

/// Whether none of `count` elements at `data` (float32 or float64, aligned) is infinite or NaN.
bool all_finite(DType dtype, const std::byte* data, int64_t count);
bool all_finite(DType dtype, const std::byte* data, int64_t count, const Compute& compute);

}  // namespace tutti::ps
