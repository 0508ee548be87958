/// Where the rows of an embedding table are found: by key, and by the push that had them last.
///
/// Slot: where a row lies; it keeps its slot until it is evicted. Thread rule: as containers.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "tutti/ps/spec/detail/mixed_key.h"
#include "tutti/ps/values/detail/sparse_memory.h"

namespace tutti::ps::detail {

inline constexpr uint32_t kNone = std::numeric_limits<uint32_t>::max();  ///< no slot

/// Brings a cache line near. A load and not a prefetch, which processors drop when the page is not
/// in their TLB, as it seldom is in a large table; loads of several lines in a row overlap.
inline void read_ahead(const void* line) noexcept {
  asm volatile("" : : "r"(*static_cast<const unsigned char*>(line)));
}

/// Key to slot: open addressing with linear probing, Knuth, The Art of Computer Programming 3, 6.4.
class Index {
 public:
  int64_t size() const { return size_; }
  int64_t num_bytes() const { return static_cast<int64_t>(entries_.size() * sizeof(Entry)); }
  void touch(uint64_t key) const { read_ahead(&entries_[home(key)]); }

  uint32_t find(uint64_t key) const {
    size_t at = home(key);
    while (entries_[at].slot != kNone && entries_[at].key != key) at = after(at);
    return entries_[at].slot;
  }

  // `key` is not there.
  void insert(uint64_t key, uint32_t slot) {
    // At most 5/8 full: a search that fails looks at four entries, one that finds at two.
    if (static_cast<size_t>(++size_) * 8 > entries_.size() * 5) {
      const Entries old = std::exchange(entries_, Entries(2 * capacity()));
      for (const Entry& entry : old)
        if (entry.slot != kNone) place(entry);
    }
    place({key, slot});
  }

  // Algorithm R there: those behind move up until one is at home or a place is empty.
  void erase(uint64_t key) {
    size_t hole = home(key);
    while (entries_[hole].key != key) hole = after(hole);
    for (size_t at = after(hole); entries_[at].slot != kNone; at = after(at)) {
      const size_t mask = capacity() - 1;
      const size_t from_home = (at - home(entries_[at].key)) & mask;
      if (from_home < ((at - hole) & mask)) continue;
      entries_[hole] = entries_[at];
      hole = at;
    }
    entries_[hole] = {};
    --size_;
  }

  std::vector<uint32_t> slots() const {
    std::vector<uint32_t> found;
    for (const Entry& entry : entries_)
      if (entry.slot != kNone) found.push_back(entry.slot);
    return found;
  }

 private:
  struct Entry {
    uint64_t key = 0;
    uint32_t slot = kNone;
  };
  using Entries = std::vector<Entry, LargePages<Entry>>;

  size_t capacity() const { return entries_.size(); }
  size_t home(uint64_t key) const { return mixed(key) & (capacity() - 1); }
  size_t after(size_t at) const { return (at + 1) & (capacity() - 1); }
  void place(const Entry& entry) {
    size_t at = home(entry.key);
    while (entries_[at].slot != kNone) at = after(at);
    entries_[at] = entry;
  }

  Entries entries_ = Entries(16);  // a power of two
  int64_t size_ = 0;
};

/// Numbers keys from 0 on, in the order in which they first come.
class KeyNumbers {
 public:
  explicit KeyNumbers(size_t most_keys) : marks_(std::bit_ceil(2 * most_keys + 1), kNone) {}

  /// The number of `key`. It was new if there is one more in keys() now.
  uint32_t add(uint64_t key) {
    const size_t mask = marks_.size() - 1;
    size_t at = mixed(key) & mask;
    while (marks_[at] != kNone && keys_[marks_[at]] != key) at = (at + 1) & mask;
    if (marks_[at] == kNone) {
      marks_[at] = static_cast<uint32_t>(keys_.size());
      keys_.push_back(key);
    }
    return marks_[at];
  }
  const std::vector<uint64_t>& keys() const { return keys_; }

 private:
  std::vector<uint32_t> marks_;
  std::vector<uint64_t> keys_;
};

/// Slots in the order of their last push, linked by number.
class PushOrder {
 public:
  uint32_t front() const { return front_; }
  uint32_t back() const { return back_; }
  uint32_t after(uint32_t slot) const { return links_[slot].after; }

  void append(uint32_t slot) {
    if (slot >= links_.size()) links_.resize(slot + 1);
    links_[slot] = {.before = back_, .after = kNone};
    (back_ == kNone ? front_ : links_[back_].after) = slot;
    back_ = slot;
  }

  void prepend(uint32_t slot) {
    links_[slot] = {.before = kNone, .after = front_};
    (front_ == kNone ? back_ : links_[front_].before) = slot;
    front_ = slot;
  }

  void remove(uint32_t slot) {
    const auto [before, after] = links_[slot];
    (before == kNone ? front_ : links_[before].after) = after;
    (after == kNone ? back_ : links_[after].before) = before;
  }

  void clear() { front_ = back_ = kNone; }
  int64_t num_bytes() const { return static_cast<int64_t>(links_.capacity() * sizeof(Links)); }

 private:
  struct Links {
    uint32_t before = kNone;
    uint32_t after = kNone;
  };

  std::vector<Links> links_;  // of slot
  uint32_t front_ = kNone;
  uint32_t back_ = kNone;
};

}  // namespace tutti::ps::detail
