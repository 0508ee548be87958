#include "tutti/data/loader/detail/slots.h"

#include <algorithm>
#include <utility>

#include "tutti/data/sample.h"

namespace tutti::data::detail {

struct SlotPool::Slot {
  std::shared_ptr<std::byte> memory;
  int64_t bytes = 0;
  int64_t step = 0;
};

namespace {

std::shared_ptr<std::byte> allocated(int64_t bytes) {
  const Array memory = make_array(DType::uint8, {bytes});
  return {std::const_pointer_cast<void>(memory.owner()), static_cast<std::byte*>(memory.data())};
}

}  // namespace

SlotPool::SlotPool(int64_t most_bytes, std::function<void()> given_back)
    : most_bytes_(most_bytes), given_back_(std::move(given_back)) {}

std::shared_ptr<std::byte> SlotPool::take(int64_t bytes, int64_t step) {
  auto slot = std::make_unique<Slot>(Slot{.memory = {}, .bytes = bytes, .step = step});
  {
    const std::scoped_lock lock(mutex_);
    if (used_bytes_ + bytes > most_bytes_) return nullptr;
    if (const auto known = idle_.find(bytes); known != idle_.end()) {
      slot->memory = std::move(known->second);
      idle_.erase(known);
      idle_bytes_ -= bytes;
    }
    while (!slot->memory && !idle_.empty() && used_bytes_ + idle_bytes_ + bytes > most_bytes_) {
      idle_bytes_ -= idle_.begin()->first;
      idle_.erase(idle_.begin());
    }
    in_use_.emplace(step, bytes);
    used_bytes_ += bytes;
    peak_bytes_ = std::max(peak_bytes_, used_bytes_ + idle_bytes_);
  }
  try {
    if (!slot->memory) slot->memory = allocated(bytes);
  } catch (...) {
    give_back(slot.get());
    throw;
  }
  std::byte* const memory = slot->memory.get();
  return {memory, [self = shared_from_this(), slot = slot.release()](std::byte*) {
            self->give_back(slot);
            delete slot;
          }};
}

void SlotPool::grow(int64_t most_bytes) {
  const std::scoped_lock lock(mutex_);
  most_bytes_ = std::max(most_bytes_, most_bytes);
}

void SlotPool::give_back(Slot* slot) {
  std::function<void()> tell;
  {
    const std::scoped_lock lock(mutex_);
    auto [one, end] = in_use_.equal_range(slot->step);
    while (one != end && one->second != slot->bytes) ++one;
    if (one != end) in_use_.erase(one);
    used_bytes_ -= slot->bytes;
    if (slot->memory) {
      idle_.emplace(slot->bytes, std::move(slot->memory));
      idle_bytes_ += slot->bytes;
    }
    tell = given_back_;
  }
  if (tell) tell();
}

int64_t SlotPool::peak_bytes() const {
  const std::scoped_lock lock(mutex_);
  return peak_bytes_;
}

std::vector<int64_t> SlotPool::steps_in_use() const {
  const std::scoped_lock lock(mutex_);
  std::vector<int64_t> steps;
  for (const auto& [step, bytes] : in_use_)
    if (steps.empty() || steps.back() != step) steps.push_back(step);
  return steps;
}

void SlotPool::close() {
  const std::scoped_lock lock(mutex_);
  given_back_ = nullptr;
  idle_.clear();
  idle_bytes_ = 0;
}

}  // namespace tutti::data::detail
