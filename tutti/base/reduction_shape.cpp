#include "tutti/base/reduction_shape.h"

#include <algorithm>
#include <bit>
#include <numeric>

#include "tutti/base/detail/check.h"
#include "tutti/base/typed.h"

namespace tutti {
namespace {

constexpr int64_t kMostReplicas = 1'000'000;

// Adds the leaves [begin, end) of `leaves` into the first of them: the largest power of two below
// the count on the left, the rest on the right, each in the same way.
void combine(const std::vector<int>& leaves, int begin, int end,
             std::vector<ReductionShape::Step>& steps) {
  const int count = end - begin;
  if (count < 2) return;
  const int left = static_cast<int>(std::bit_floor(static_cast<unsigned>(count - 1)));
  combine(leaves, begin, begin + left, steps);
  combine(leaves, begin + left, end, steps);
  steps.push_back({leaves[begin], leaves[begin + left]});
}

std::vector<int> read_counts(std::string_view text, char separator) {
  std::vector<int> counts;
  for (const std::string_view word : parts_of(text, separator)) {
    counts.push_back(number_in<int>(word).value_or(0));
    if (counts.back() < 1 || counts.back() > kMostReplicas) return {};
  }
  return counts;
}

}  // namespace

ReductionShape::ReductionShape(std::vector<int> per_host) : per_host_(std::move(per_host)) {
  std::vector<int> first_of_host;
  for (int count : per_host_) {
    TUTTI_CHECK(count >= 1, "{} replicas on a host", count);
    first_of_host.push_back(replicas_);
    std::vector<int> ranks(count);
    std::iota(ranks.begin(), ranks.end(), replicas_);
    combine(ranks, 0, count, steps_);
    replicas_ += count;
  }
  combine(first_of_host, 0, static_cast<int>(first_of_host.size()), steps_);
}

ReductionShape ReductionShape::flat(int replicas) { return ReductionShape({replicas}); }

ReductionShape ReductionShape::hosts(std::vector<int> replicas_per_host) {
  return ReductionShape(std::move(replicas_per_host));
}

// What is added to one partial, in order, says everything: the steps of different ones may be
// carried out in any order.
bool ReductionShape::adds_like(const ReductionShape& other) const {
  std::vector<Step> mine = steps_, theirs = other.steps_;
  std::ranges::stable_sort(mine, {}, &Step::into);
  std::ranges::stable_sort(theirs, {}, &Step::into);
  return mine == theirs;
}

ReductionShape ReductionShape::parse(std::string_view text) {
  const auto fail = [&] {
    return UsageError(fmt::format(
        "reduction shape \"{}\": expected N (one host), HxN (H hosts of N) or N+M+...", text));
  };
  if (text.find('x') != text.npos) {
    const auto counts = read_counts(text, 'x');
    if (counts.size() != 2 || int64_t{counts[0]} * counts[1] > kMostReplicas) throw fail();
    return ReductionShape(std::vector<int>(counts[0], counts[1]));
  }
  auto counts = read_counts(text, '+');
  const int64_t sum = std::accumulate(counts.begin(), counts.end(), int64_t{0});
  if (counts.empty() || sum > kMostReplicas) throw fail();
  return ReductionShape(std::move(counts));
}

std::string ReductionShape::to_string() const {
  const bool equal = std::all_of(per_host_.begin(), per_host_.end(),
                                 [&](int count) { return count == per_host_[0]; });
  if (per_host_.size() > 1 && equal) return fmt::format("{}x{}", per_host_.size(), per_host_[0]);
  return fmt::format("{}", fmt::join(per_host_, "+"));
}

}  // namespace tutti
