/// Memory of the rows of an embedding table: slabs of a few slots, copied on write while a snapshot
/// holds them.
///
/// Slot: where a row lies. Slab: a few slots that are copied together. Thread rule: one thread; a
/// SparseCut may be read and dropped in any.
#pragma once

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#include "tutti/optim/rule.h"
#include "tutti/ps/spec/sparse_spec.h"
#include "tutti/ps/values/detail/sparse_index.h"
#include "tutti/ps/values/detail/sparse_memory.h"

namespace tutti::ps::detail {

/// What stands behind a row's elements and states. A slot is empty when its count is 0.
struct RowFacts {
  uint64_t key = 0;
  int64_t last_push = 0;
  optim::StepScalars scalars;
};
static_assert(std::is_trivially_copyable_v<RowFacts>);

/// Of a slot: its *parts*, which are elements and states, and its facts. Parts of whole cache lines
/// begin on one: a vector that is stored across two waits for both. Copying a slab for one row
/// costs 16 KiB at most, or that row; 64 rows at most, so that narrow ones are not copied by the
/// hundred.
struct Layout {
  Layout(const SparseTableSpec& spec, int states)
      : part_bytes(spec.width * size_of(spec.dtype)), num_parts(1 + states) {
    constexpr int64_t kSlabBytes = 16 << 10;
    facts_offset = round_up(part_bytes * num_parts, alignof(RowFacts));
    slot_bytes = round_up(facts_offset + int64_t{sizeof(RowFacts)},
                          part_bytes < 64 ? int64_t{alignof(RowFacts)} : 64);
    const auto slots = static_cast<uint64_t>(std::clamp<int64_t>(kSlabBytes / slot_bytes, 1, 64));
    shift = std::bit_width(slots) - 1;
  }

  static int64_t round_up(int64_t bytes, int64_t to) { return (bytes + to - 1) / to * to; }
  int64_t slab_bytes() const { return slot_bytes << shift; }
  RowFacts& facts(std::byte* row) const { return *reinterpret_cast<RowFacts*>(row + facts_offset); }
  const RowFacts& facts(const std::byte* row) const {
    return *reinterpret_cast<const RowFacts*>(row + facts_offset);
  }

  int64_t part_bytes;
  int num_parts;
  int64_t facts_offset = 0;
  int64_t slot_bytes = 0;
  int shift = 0;  // a slab has 2^shift slots
};

/// A snapshot's sign of life. Snapshots of a table are numbered from 1.
struct Holder {
  int64_t number = 0;
  std::atomic<bool> gone = false;
};

/// Invariant: living snapshots that hold the slab are those with a number above `made`, the number
/// of snapshots that had been taken when it was allocated.
struct Slab {
  std::shared_ptr<const void> owner;
  std::byte* data = nullptr;
  int64_t made = 0;
};

inline const std::byte* at_slot(const std::vector<Slab>& slabs, const Layout& layout,
                                uint32_t slot) {
  const uint32_t in_slab = slot & ((1U << layout.shift) - 1);
  return slabs[slot >> layout.shift].data + int64_t{in_slab} * layout.slot_bytes;
}

/// A table at one moment.
struct SparseCut {
  SparseCut(Layout where, std::vector<Slab> slabs_now, std::shared_ptr<Holder> sign)
      : layout(where), slabs(std::move(slabs_now)), holder(std::move(sign)) {}
  SparseCut(const SparseCut&) = delete;
  SparseCut& operator=(const SparseCut&) = delete;
  // After the last read: whoever sees it may write where this cut has read.
  ~SparseCut() { holder->gone.store(true, std::memory_order_release); }

  Layout layout;
  std::vector<Slab> slabs;
  int64_t num_rows = 0;
  int64_t pushes = 0;
  std::shared_ptr<Holder> holder;
};

/// The slots of a table, and who holds them.
class RowStore {
 public:
  RowStore(const Layout& layout, SlabPool::Charge charge)
      : layout_(layout),
        pool_(std::make_shared<SlabPool>(layout.slab_bytes(), std::move(charge))) {}

  const Layout& layout() const { return layout_; }
  const std::byte* row(uint32_t slot) const {
    const uint32_t in_slab = slot & ((1U << layout_.shift) - 1);
    return data_[slot >> layout_.shift] + int64_t{in_slab} * layout_.slot_bytes;
  }

  const RowFacts& facts(uint32_t slot) const { return layout_.facts(row(slot)); }

  // The first `bytes` of a row, as far as the processor would not see by itself where it goes.
  void touch(uint32_t slot, int64_t bytes) const {
    const std::byte* const begin = row(slot);
    for (int64_t at = 0; at < std::min<int64_t>(bytes, 1024); at += 64) read_ahead(begin + at);
  }

  // To be called before the first writable() after a snapshot may have come or gone.
  void look_for_snapshots() {
    while (!holders_.empty() && holders_.back()->gone.load(std::memory_order_acquire))
      holders_.pop_back();
    newest_held_ = holders_.empty() ? 0 : holders_.back()->number;
  }

  /// Whether writable() may have to copy a slab.
  bool held() const { return newest_held_ > 0; }

  std::byte* writable(uint32_t slot) {
    const uint32_t number = slot >> layout_.shift;
    if (held() && newest_held_ > slabs_[number].made) [[unlikely]] {
      const Slab held = std::exchange(slabs_[number], new_slab());
      data_[number] = slabs_[number].data;
      std::memcpy(data_[number], held.data, static_cast<size_t>(layout_.slab_bytes()));
    }
    return const_cast<std::byte*>(row(slot));
  }

  uint32_t take() {
    if (free_.empty()) {
      const auto first = static_cast<uint32_t>(slabs_.size() << layout_.shift);
      slabs_.push_back(new_slab());
      data_.push_back(slabs_.back().data);
      for (uint32_t next = 1U << layout_.shift; next > 0; --next) free_.push_back(first + next - 1);
    }
    const uint32_t slot = free_.back();
    free_.pop_back();
    return slot;
  }

  void give_back(uint32_t slot) {
    layout_.facts(writable(slot)) = {};
    free_.push_back(slot);
  }

  std::shared_ptr<SparseCut> cut() {
    std::erase_if(holders_, [](const auto& h) { return h->gone.load(std::memory_order_acquire); });
    auto holder = std::make_shared<Holder>();
    holder->number = ++snapshots_;
    holders_.push_back(holder);
    return std::make_shared<SparseCut>(layout_, slabs_, std::move(holder));
  }

  /// A store of its own with the same rows: each of the two copies a slab that both have before it
  /// writes there.
  RowStore fork() {
    RowStore other(*this);
    other.shared_with_ = cut();
    // As if a snapshot that never goes held all of them.
    other.holders_ = {std::make_shared<Holder>()};
    other.holders_.front()->number = other.snapshots_ = other.newest_held_ = 1;
    for (Slab& slab : other.slabs_) slab.made = 0;
    return other;
  }

  int64_t num_bytes() const {
    return std::ssize(slabs_) * layout_.slab_bytes() +
           static_cast<int64_t>(slabs_.capacity() * sizeof(Slab) +
                                data_.capacity() * sizeof(std::byte*) + free_.capacity() * 4);
  }

 private:
  Slab new_slab() const {
    const auto memory = pool_->take();
    return {memory, memory.get(), snapshots_};
  }

  Layout layout_;
  std::shared_ptr<SlabPool> pool_;  // a fork's too
  std::vector<Slab> slabs_;
  std::vector<std::byte*> data_;  // of slabs, by themselves: those of a million rows stay in L2
  std::vector<uint32_t> free_;
  std::vector<std::shared_ptr<Holder>> holders_;  // ascending; the last may be gone
  int64_t snapshots_ = 0;
  int64_t newest_held_ = 0;
  std::shared_ptr<const SparseCut> shared_with_;  // of a fork: keeps the other from writing
};

}  // namespace tutti::ps::detail
