#include "tutti/sync/on_devices/detail/device_progress.h"

#include <fmt/format.h>

#include <algorithm>

namespace tutti::detail {

void PassesDone::queued(const DeviceQueue& queue) {
  DeviceMark& mark = on_their_way_.emplace_back();
  if (!spare_.empty()) {
    mark = std::move(spare_.back());
    spare_.pop_back();
  }
  queue.mark(mark);
}

uint32_t PassesDone::count() {
  while (!on_their_way_.empty() && on_their_way_.front().passed()) {
    spare_.push_back(std::move(on_their_way_.front()));
    on_their_way_.pop_front();
    ++done_;
  }
  return done_;
}

void DeviceProgress::note(std::span<const uint32_t> done) {
  for (size_t rank = 0; rank < done.size(); ++rank)
    done_[rank].store(done[rank], std::memory_order_relaxed);
}

std::string DeviceProgress::behind() const {
  std::vector<uint32_t> done;
  for (const auto& one : done_) done.push_back(one.load(std::memory_order_relaxed));
  const auto last = std::ranges::min_element(done);
  const uint32_t most = std::ranges::max(done);
  if (*last == most) return "";
  return fmt::format("the device of replica {} has done {} backward passes, others {}",
                     last - done.begin(), *last, most);
}

}  // namespace tutti::detail
