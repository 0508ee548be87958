/// SlotPool: memory for parts of batches, within a number of bytes, used again and again.
///
/// Thread rule: any thread may use any of it.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

namespace tutti::data::detail {

class SlotPool : public std::enable_shared_from_this<SlotPool> {
 public:
  /// `given_back` is called, unlocked, after memory has come back.
  SlotPool(int64_t most_bytes, std::function<void()> given_back);

  /// Memory for a part of `step`, given back when its last owner lets go; null when there is none
  /// within the bound now.
  std::shared_ptr<std::byte> take(int64_t bytes, int64_t step);

  /// A bound that is higher, perhaps.
  void grow(int64_t most_bytes);
  int64_t peak_bytes() const;
  /// Steps whose memory is in use, ascending.
  std::vector<int64_t> steps_in_use() const;
  /// Nobody listens any more.
  void close();

 private:
  struct Slot;
  void give_back(Slot* slot);

  mutable std::mutex mutex_;  // of what follows
  int64_t most_bytes_;
  std::function<void()> given_back_;
  std::multimap<int64_t, std::shared_ptr<std::byte>> idle_;  // by bytes
  std::multimap<int64_t, int64_t> in_use_;                   // bytes by step
  int64_t idle_bytes_ = 0;
  int64_t used_bytes_ = 0;
  int64_t peak_bytes_ = 0;
};

}  // namespace tutti::data::detail
