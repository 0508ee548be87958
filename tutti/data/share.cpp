#include "tutti/data/share.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "tutti/base/error.h"

namespace tutti::data {
namespace {

void require_rank(int64_t global_size, int replicas, int rank, std::span<const double> weights) {
  if (global_size < 0 || replicas < 1 || rank < 0 || rank >= replicas)
    throw UsageError(fmt::format(
        "share of replica {} of {} in a batch of {}: expected 0 <= rank < replicas, size >= 0",
        rank, replicas, global_size));
  if (weights.empty()) return;
  const bool good = std::all_of(weights.begin(), weights.end(),
                                [](double weight) { return std::isfinite(weight) && weight >= 0; });
  const double total = std::accumulate(weights.begin(), weights.end(), 0.0);
  if (!good || !(total > 0) || !std::isfinite(total) ||
      weights.size() != static_cast<size_t>(replicas))
    throw UsageError(
        fmt::format("weights of shares [{}]: expected {} finite numbers >= 0, not all of them 0",
                    fmt::join(weights, ", "), replicas));
}

// Largest remainder: everybody gets the whole part, the largest fractions one more.
std::vector<int64_t> weighted_sizes(int64_t global_size, std::span<const double> weights) {
  const double total = std::accumulate(weights.begin(), weights.end(), 0.0);
  std::vector<int64_t> sizes;
  std::vector<double> fractions;
  int64_t left = global_size;
  for (double weight : weights) {
    const double exact = static_cast<double>(global_size) * (weight / total);
    // Rounding may lift a product over its true value, never by a whole sample; `left` caps it.
    sizes.push_back(std::min(left, static_cast<int64_t>(exact)));
    fractions.push_back(weight > 0 ? exact - std::floor(exact) : -1);
    left -= sizes.back();
  }
  std::vector<size_t> ranks(weights.size());
  std::iota(ranks.begin(), ranks.end(), size_t{0});
  std::stable_sort(ranks.begin(), ranks.end(),
                   [&](size_t a, size_t b) { return fractions[a] > fractions[b]; });
  for (size_t i = 0; left > 0; i = (i + 1) % ranks.size()) {
    if (weights[ranks[i]] <= 0) continue;
    ++sizes[ranks[i]];
    --left;
  }
  return sizes;
}

}  // namespace

Share share(int64_t global_size, int replicas, int rank, std::span<const double> weights) {
  require_rank(global_size, replicas, rank, weights);
  if (weights.empty()) {
    const int64_t each = global_size / replicas;
    const int64_t more = global_size % replicas;
    const int64_t begin = rank * each + std::min<int64_t>(rank, more);
    return {begin, begin + each + (rank < more ? 1 : 0)};
  }
  const auto sizes = weighted_sizes(global_size, weights);
  const int64_t begin = std::accumulate(sizes.begin(), sizes.begin() + rank, int64_t{0});
  return {begin, begin + sizes[static_cast<size_t>(rank)]};
}

}  // namespace tutti::data
