#include "tutti/comm/engine/detail/members.h"

#include <algorithm>
#include <array>
#include <set>

namespace tutti::detail {

std::vector<int> members_of_color(Engine& engine, int color, int key, Millis limit) {
  const int size = engine.size();
  std::array<int64_t, 2> mine{color, key};
  std::vector<std::array<int64_t, 2>> all(static_cast<size_t>(size));
  engine.run({.collective = Collective::all_gather,
              .input = span_of(std::span(mine)),
              .output = {all.data(), 2 * int64_t{size}, DType::int64},
              .limit = limit});
  std::vector<int> members;
  for (int r = 0; r < size; ++r)
    if (color >= 0 && all[static_cast<size_t>(r)][0] == color) members.push_back(r);
  std::ranges::stable_sort(members, {}, [&](int r) { return all[static_cast<size_t>(r)][1]; });
  return members;
}

ReductionShape shape_of_hosts(const std::vector<int>& hosts) {
  std::vector<int> counts;
  std::set<int> seen;
  for (size_t r = 0; r < hosts.size(); ++r) {
    if (r == 0 || hosts[r] != hosts[r - 1]) {
      if (!seen.insert(hosts[r]).second)
        return ReductionShape::flat(static_cast<int>(hosts.size()));
      counts.push_back(0);
    }
    ++counts.back();
  }
  return ReductionShape::hosts(std::move(counts));
}

std::vector<int> hosts_of(const ReductionShape& shape) {
  std::vector<int> hosts;
  for (int host = 0; int count : shape.replicas_per_host())
    hosts.insert(hosts.end(), static_cast<size_t>(count), host++);
  return hosts;
}

}  // namespace tutti::detail
