#include "tutti/sync/shared/detail/host_sums.h"

#include <algorithm>
#include <array>

#include "tutti/net/arena.h"

namespace tutti::detail {

HostSums::HostSums(HostView view, const Slots& layout,
                   const std::vector<std::vector<Stretch>>& slices)
    : view_(std::move(view)), begin_of_(layout.slots.size()), dtype_of_(layout.slots.size()) {
  int64_t end = 0;
  for (size_t rail = 0; rail < view_.rails.size(); ++rail) {
    bool first = true;  // a run ends where its rail does
    for (const Stretch& stretch : slices[static_cast<size_t>(view_.first_slice) + rail]) {
      const ParameterSlot& slot = layout.slots[static_cast<size_t>(stretch.parameter)];
      const int64_t width = size_of(slot.dtype);
      const bool other = !runs_.empty() && runs_.back().dtype != slot.dtype;
      if (other) end = round_up(end, 64);
      if (first || other) runs_.push_back({slot.dtype, end, 0, rail});
      first = false;
      const auto parameter = static_cast<size_t>(stretch.parameter);
      // A parameter that two of this replica's slices share goes on where it ended.
      begin_of_[parameter] = end - stretch.begin * width;
      dtype_of_[parameter] = slot.dtype;
      runs_.back().num_elements += stretch.end - stretch.begin;
      end += (stretch.end - stretch.begin) * width;
    }
  }
  sums_ = Array::zeros(DType::uint8, {end});
}

std::byte* HostSums::sum_of(const Stretch& stretch) const {
  const auto parameter = static_cast<size_t>(stretch.parameter);
  return static_cast<std::byte*>(sums_.data()) + begin_of_[parameter] +
         stretch.begin * size_of(dtype_of_[parameter]);
}

void HostSums::exchange(std::span<uint8_t> used, double& learning_rate, Millis limit) {
  std::array<double, 1> rate{learning_rate};
  Group& first = view_.rails.front();
  std::vector<Work> works = {
      first.all_reduce({used.data(), static_cast<int64_t>(used.size()), DType::uint8},
                       ReduceOp::max, limit),
      first.broadcast(span_of(std::span(rate)), 0, limit)};
  for (const Run& run : runs_)
    works.push_back(view_.rails[run.rail].all_reduce(
        {static_cast<std::byte*>(sums_.data()) + run.begin, run.num_elements, run.dtype},
        ReduceOp::sum, limit));
  for (Work& work : works) work.wait(limit);
  learning_rate = rate[0];
}

void HostSums::add(std::span<double> values, Millis limit) {
  view_.rails.front().all_reduce(span_of(values), ReduceOp::sum, limit).wait(limit);
}

}  // namespace tutti::detail
