#include "tutti/sync/slots.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>

#include "tutti/base/detail/check.h"
#include "tutti/net/arena.h"

namespace tutti {

Slots Slots::of(std::vector<ParameterSlot> slots) {
  Slots layout;
  for (ParameterSlot& slot : slots) {
    slot.offset_bytes = layout.total_bytes;
    layout.total_bytes += round_up(slot.num_elements * size_of(slot.dtype), kLineBytes);
  }
  layout.slots = std::move(slots);
  return layout;
}

std::vector<std::vector<Stretch>> Slots::cut(std::span<const double> shares) const {
  TUTTI_CHECK(!shares.empty(), "no owners");
  const auto trained_bytes = [](const ParameterSlot& slot) {
    return slot.trained ? slot.num_elements * size_of(slot.dtype) : 0;
  };
  double all_bytes = 0, all_shares = 0;
  for (const auto& slot : slots) all_bytes += static_cast<double>(trained_bytes(slot));
  for (double share : shares) all_shares += share;

  std::vector<std::vector<Stretch>> stretches(shares.size());
  size_t owner = 0;
  double done = 0, until = all_bytes * shares[0] / all_shares;
  for (int parameter = 0; parameter < static_cast<int>(slots.size()); ++parameter) {
    const ParameterSlot& slot = slots[parameter];
    if (!slot.trained) continue;
    for (int64_t begin = 0; begin < slot.num_elements; begin += kBlockElements) {
      const int64_t end = std::min(begin + kBlockElements, slot.num_elements);
      const double bytes = static_cast<double>((end - begin) * size_of(slot.dtype));
      // A block goes to the owner in whose range its middle lies.
      while (owner + 1 < shares.size() && done + bytes / 2 > until) {
        ++owner;
        until += all_bytes * shares[owner] / all_shares;
      }
      auto& mine = stretches[owner];
      if (!mine.empty() && mine.back().parameter == parameter && mine.back().end == begin) {
        mine.back().end = end;
      } else {
        mine.push_back({parameter, begin, end});
      }
      done += bytes;
    }
  }
  return stretches;
}

int64_t Slots::trained_bytes() const {
  int64_t bytes = 0;
  for (const ParameterSlot& slot : slots)
    if (slot.trained) bytes += slot.num_elements * size_of(slot.dtype);
  return bytes;
}

std::string Slots::describe() const {
  std::string text;
  for (const auto& slot : slots)
    text +=
        fmt::format("{} {} [{}]\n", slot.name, name_of(slot.dtype), fmt::join(slot.shape, ", "));
  return text;
}

}  // namespace tutti
