/// What is said of a device without memory for a batch; not for users.
#pragma once

#include <c10/util/Exception.h>

#include <cstdint>
#include <string>
#include <string_view>

#include "tutti/strategy/replica_context.h"
#include "tutti/sync/device/runtime.h"

namespace tutti::detail {

/// Bytes in LibTorch's words, "Tried to allocate 300.00 MiB"; 0 where there are none. Pure.
int64_t bytes_asked_for(std::string_view words);

/// What had no memory.
struct OutOfMemory {
  std::string where{};         ///< "step 12"
  int64_t samples = 0;         ///< of the replica's part
  int64_t global_samples = 0;  ///< of the batch
  int64_t limit_bytes = 0;     ///< of --memory-limit; 0: none
};

/// "1.9 of 2.0 GB in use, 300 MB more asked for (limit from --memory-limit)"; and a batch that may
/// fit, where that can be told. Pure.
///
/// memory  once what the batch had taken was given back
/// asked   bytes that were not there; 0: unknown
std::string memory_words(const OutOfMemory& work, const DeviceMemory& memory, int64_t asked);

/// "replica 1 (cuda:0): out of memory in step 12: ...", an Error.
[[noreturn]] void throw_out_of_memory(const ReplicaContext& replica,
                                      const c10::OutOfMemoryError& error, const OutOfMemory& work);

}  // namespace tutti::detail
