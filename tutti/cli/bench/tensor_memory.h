/// What tensors of this process take of memory: bytes that LibTorch's allocator of the CPU has
/// given and not got back.
///
/// Of one piece of work, as a step: begin(), the work, end(). Memory that was there before is not
/// counted, nor when it goes; outside of work an allocation costs what it always does. Thread rule:
/// one at a time in a process, made and destroyed while nobody else makes tensors, as before
/// threads begin; threads may make some meanwhile. The functions: one thread.
#pragma once

#include <cstdint>

namespace tutti::cli {

class TensorMemory {
 public:
  TensorMemory();
  ~TensorMemory();
  TensorMemory(const TensorMemory&) = delete;

  void begin();
  /// The most since begin(), in bytes, of what was made since then.
  int64_t peak() const;
  /// peak(); counts no more.
  int64_t end();
};

}  // namespace tutti::cli
