/// A segment as this process sees it: descriptor, mappings, and who of its members is alive.
///
/// Thread rule: const functions may be called from any thread; extent() locks.
#pragma once

#include <map>
#include <mutex>

#include "tutti/comm/shm/layout.h"
#include "tutti/comm/shm/shm.h"
#include "tutti/net/arena.h"

namespace tutti {

struct ShmSegment::State {
  /// Maps the fixed part of `file`, whose header must be complete.
  State(SharedFile file, const ShmOptions& options);

  detail::SegmentHeader& header() const noexcept {
    return *reinterpret_cast<detail::SegmentHeader*>(fixed.data());
  }
  const detail::SegmentFacts& facts() const noexcept { return header().facts; }
  detail::RankBlock& block(int rank) const noexcept {
    return *reinterpret_cast<detail::RankBlock*>(block_start(rank));
  }
  std::byte* small_slot(int rank, uint32_t turn) const noexcept {
    return block_start(rank) + detail::kBlockBytes + turn * facts().small_slot_bytes;
  }
  std::byte* staging_slot(int rank, uint32_t turn) const noexcept {
    return small_slot(rank, detail::kSlots) + turn * facts().slot_bytes;
  }

  /// Memory from allocate(), mapped once a process; it stays mapped as long as the segment does.
  Mapping extent(int64_t offset, int64_t bytes);

  /// Stores the first failure, seen or caused by rank `by`, and wakes every sleeper. From any
  /// thread; later calls do nothing.
  void poison(FailureKind kind, int by, const char* text) noexcept;
  /// Wakes whoever sleeps on a flag of `rank`.
  void wake_sleepers(int rank) noexcept;

  SharedFile file;
  SharedFile locks;  ///< description of this process's own: the kernel drops its locks at death
  Mapping fixed;
  ShmOptions options;

 private:
  std::byte* block_start(int rank) const noexcept {
    return fixed.data() + detail::kHeaderBytes + rank * facts().stride_bytes;
  }

  std::mutex mutex_;
  std::map<int64_t, Mapping> extents_;  // by offset; guarded by mutex_
};

}  // namespace tutti
