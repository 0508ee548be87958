/// Memory that is read in no order: of a table's rows and of its index. Thread rule: any.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "tutti/base/detail/large_pages.h"

namespace tutti::ps::detail {

using tutti::detail::LargePages;

/// Slabs of one size, cut from blocks, and used again.
class SlabPool : public std::enable_shared_from_this<SlabPool> {
 public:
  using Charge = std::function<void(int64_t bytes)>;

  /// charge  as Compute::charge
  SlabPool(int64_t slab_bytes, Charge charge)
      : slab_bytes_(static_cast<size_t>(slab_bytes)), charge_(std::move(charge)) {}
  SlabPool(const SlabPool&) = delete;
  SlabPool& operator=(const SlabPool&) = delete;
  ~SlabPool() {
    for (const Block& block : blocks_) {
      LargePages<std::byte>().deallocate(block.data, block.bytes);
      charge_(-static_cast<int64_t>(block.bytes));
    }
  }

  /// A slab of zeros; it comes back when its last copy goes. Throws as `charge`.
  std::shared_ptr<std::byte> take() {
    std::byte* const slab = next();
    std::memset(slab, 0, slab_bytes_);
    return {slab, [pool = shared_from_this()](std::byte* gone) { pool->give_back(gone); }};
  }

 private:
  struct Block {
    std::byte* data = nullptr;
    size_t bytes = 0;
  };

  std::byte* next() {
    const std::lock_guard lock(mutex_);
    if (free_.empty()) grow();
    std::byte* const slab = free_.back();
    free_.pop_back();
    return slab;
  }

  // By an eighth, in whole pages: a small table stays small, and a large one is some tens of
  // blocks.
  void grow() {
    constexpr size_t kMostBytes = size_t{64} << 20;
    const size_t wanted = std::min(num_slabs_ * slab_bytes_ / 8, kMostBytes);
    const size_t count = std::max<size_t>(1, tutti::detail::rounded_to_pages(wanted) / slab_bytes_);
    free_.reserve(num_slabs_ + count);  // so that give_back() needs no memory
    blocks_.reserve(blocks_.size() + 1);
    const size_t bytes = count * slab_bytes_;
    charge_(static_cast<int64_t>(bytes));
    blocks_.push_back({LargePages<std::byte>().allocate(bytes), bytes});
    num_slabs_ += count;
    for (size_t i = count; i > 0; --i) free_.push_back(blocks_.back().data + (i - 1) * slab_bytes_);
  }

  void give_back(std::byte* slab) noexcept {
    const std::lock_guard lock(mutex_);
    free_.push_back(slab);
  }

  const size_t slab_bytes_;
  const Charge charge_;
  std::mutex mutex_;  // guards all below
  std::vector<Block> blocks_;
  std::vector<std::byte*> free_;
  size_t num_slabs_ = 0;  // in all blocks
};

}  // namespace tutti::ps::detail
