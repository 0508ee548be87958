/// What is said of a device that has no memory for a piece of work.
#pragma once

#include <c10/util/Exception.h>

#include <cstdint>
#include <string>
#include <string_view>

#include "tutti/queues/queue.h"
#include "tutti/queues/runtime.h"

namespace tutti {

/// What had no memory.
struct MemoryNeed {
  std::string where{};         ///< "in step 12", "while the model is made"
  int64_t global_samples = 0;  ///< of the batch; 0: of none
  bool trains = false;         ///< a smaller batch may be one of several of an update
};

namespace detail {

/// Bytes in LibTorch's words, "Tried to allocate 300.00 MiB"; 0 where there are none. Pure.
int64_t bytes_asked_for(std::string_view words);

/// "1.9 GiB of 2.0 GiB in use, 300.0 MiB more asked for (limit from --memory-limit)"; a batch that
/// may fit, where that can be told; and what to try. Pure.
///
/// memory  once what the work had taken was given back
/// asked   bytes that were not there; 0: unknown
std::string memory_words(const MemoryNeed& need, const DeviceMemory& memory, int64_t asked);

}  // namespace detail

/// "replica 1 (cuda:0): out of memory in step 12: ...", an Error.
[[noreturn]] void throw_out_of_memory(const DeviceQueue& queue, const c10::OutOfMemoryError& error,
                                      const MemoryNeed& need);

/// What `work` returns; that Error where the queue's device has no memory for it.
template <class Work>
auto with_memory(const DeviceQueue& queue, const char* where, Work work) {
  try {
    return work();
  } catch (const c10::OutOfMemoryError& error) {
    throw_out_of_memory(queue, error, {.where = where});
  }
}

}  // namespace tutti
