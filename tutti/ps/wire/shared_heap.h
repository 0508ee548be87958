/// SharedHeap: blocks of memory that other processes on this host can map, for payloads that are to
/// travel as a place instead of as bytes. PeerHeap: the same memory from the other side.
///
/// The memory is one memfd, which grows and never shrinks: nothing has a name, and nothing stays
/// after any kind of death.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "tutti/net/arena.h"

namespace tutti::ps {

/// Thread rule: every function may be called from any thread; so may the last copy of a block go.
class SharedHeap {
 public:
  /// limit_bytes: held_bytes() and what is charged never exceed it; 0: no limit but the machine's.
  /// Throws UsageError for a negative one.
  explicit SharedHeap(int64_t limit_bytes = 0);

  /// A block of `bytes` (0 or more), from a 64-byte line on, with whatever an earlier block left in
  /// it. Its memory is resident: touching it is no page fault. With the last copy it becomes free,
  /// for blocks of any size; copies may outlive the heap. Throws Error with all sizes when the
  /// limit or the machine has no room.
  std::shared_ptr<std::byte> allocate(int64_t bytes);
  /// Counts memory that its owner takes elsewhere, so that one limit holds for all of it; negative:
  /// given back. Throws as allocate(), and counts nothing then.
  void charge(int64_t bytes);

  /// Where in the file `pointer` lies, in bytes from its begin; none when it is not of this heap.
  std::optional<int64_t> place_of(const void* pointer) const;

  int64_t held_bytes() const;       ///< taken from the machine: size of the file
  int64_t used_bytes() const;       ///< of these, in blocks that live
  int descriptor() const noexcept;  ///< of the file, for a DescriptorGiver; stays the heap's
  int64_t limit_bytes() const noexcept;

 private:
  class State;
  std::shared_ptr<State> state_;  // blocks have copies
};

/// Another process's SharedHeap, mapped piece by piece as it is asked for.
/// Thread rule: every function may be called from any thread.
class PeerHeap {
 public:
  /// `descriptor`: what a DescriptorGiver passed; a duplicate is taken. `who` names the other side
  /// in errors. Throws Error when the file could be cut under a mapping, which no SharedHeap's can.
  PeerHeap(int descriptor, std::string who);

  /// [place, place + bytes) of the other side's heap, which stays mapped as long as a copy of the
  /// pointer lives. Throws Error when not all of it lies in the file, or the file has holes.
  std::shared_ptr<const std::byte> at(int64_t place, int64_t bytes);

  const std::string& who() const noexcept { return who_; }
  int64_t mapped_bytes() const;  ///< addresses in use, for tests

 private:
  const Mapping& mapping_with(int64_t place, int64_t bytes);

  const SharedFile file_;
  const std::string who_;
  mutable std::mutex mutex_;
  std::vector<Mapping> mappings_;  // guarded by mutex_; each reaches from a former end to an end
};

}  // namespace tutti::ps
