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
  /// Maps a child at `offset`.
  State(std::shared_ptr<State> root, int64_t offset, int64_t bytes);

  /// Reserves a child of `root` for `size` ranks and writes its facts: where, and how many bytes;
  /// offset -1 when memory is short.
  static std::pair<int64_t, int64_t> make_child(const std::shared_ptr<State>& root, int size);
  /// That child as this process sees it, one for all its members here.
  static std::shared_ptr<State> open_child(const std::shared_ptr<State>& root, int64_t offset,
                                           int64_t bytes);

  const SharedFile& file() const noexcept { return root == nullptr ? own_file : root->own_file; }
  const SharedFile& locks() const noexcept { return root == nullptr ? own_locks : root->own_locks; }
  /// The byte of the file that member `rank` holds locked.
  int64_t lock_of(int rank) const noexcept { return fixed.offset() + rank; }
  /// A part of the file that nobody else uses, not yet reserved; on a page.
  int64_t take(int64_t bytes) noexcept;
  /// Offsets of the channels that `rank` has opened, by receiver.
  std::atomic<int64_t>* channel_table(int rank) const noexcept {
    return reinterpret_cast<std::atomic<int64_t>*>(staging_slot(rank, detail::kSlots));
  }
  /// Counts a member as gone. The last one of a child gives its memory back.
  void leave(int64_t channel_bytes) noexcept;

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

  /// Memory behind the segment, mapped once a process; it stays mapped as long as the segment does.
  Mapping extent(int64_t offset, int64_t bytes);

  /// Stores the first failure, seen or caused by rank `by`, and wakes every sleeper. From any
  /// thread; later calls do nothing.
  void poison(FailureKind kind, int by, const char* text) noexcept;
  /// Wakes whoever sleeps on a flag of `rank`.
  void wake_sleepers(int rank) noexcept;

  const std::shared_ptr<State> root;  ///< null for a root itself
  SharedFile own_file;
  SharedFile
      own_locks;  ///< a description of this process's own: the kernel drops its locks at death
  Mapping fixed;
  ShmOptions options;

 private:
  std::byte* block_start(int rank) const noexcept {
    return fixed.data() + detail::kHeaderBytes + rank * facts().stride_bytes;
  }

  std::mutex mutex_;
  std::map<int64_t, Mapping> extents_;                // by offset; guarded by mutex_
  std::map<int64_t, std::weak_ptr<State>> children_;  // by offset; guarded by mutex_
};

}  // namespace tutti
