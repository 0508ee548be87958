#include "tutti/ps/partial_sums.h"

#include <algorithm>
#include <map>
#include <set>

namespace tutti::ps {

std::vector<PartialSum> partial_sums(const ReductionShape& shape, int first, int count) {
  std::map<int, std::vector<int>> sums;  // by the rank that stands for it
  for (int rank = first; rank < first + count; ++rank) sums[rank] = {rank};
  // A rank that has met one of another worker, or such a sum, takes part in nothing more here.
  std::set<int> settled;
  const auto open = [&](int rank) { return sums.contains(rank) && !settled.contains(rank); };
  for (const ReductionShape::Step& step : shape.steps()) {
    if (open(step.into) && open(step.from)) {
      auto& into = sums[step.into];
      into.insert(into.end(), sums[step.from].begin(), sums[step.from].end());
      sums.erase(step.from);
    } else {
      settled.insert(step.into);
      settled.insert(step.from);
    }
  }
  std::vector<PartialSum> result;
  for (auto& [rank, ranks] : sums) {
    std::ranges::sort(ranks);
    result.push_back({rank, std::move(ranks)});
  }
  return result;
}

}  // namespace tutti::ps
