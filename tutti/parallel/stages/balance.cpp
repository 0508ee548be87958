#include "tutti/parallel/stages/balance.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>

#include "tutti/base/error.h"

namespace tutti::parallel {
namespace {

constexpr double kImpossible = std::numeric_limits<double>::infinity();

/// Of the stage [begin, end).
using StageSeconds = std::function<double(size_t begin, size_t end)>;

/// least[k][b]: the most that a stage takes when the layers from b on are cut into k, at the best.
std::vector<std::vector<double>> least_of_tails(size_t layers, size_t stages,
                                                const StageSeconds& cost) {
  std::vector<std::vector<double>> least(stages + 1, std::vector(layers + 1, kImpossible));
  least[0][layers] = 0;
  for (size_t k = 1; k <= stages; ++k)
    for (size_t begin = 0; begin + k <= layers; ++begin)
      for (size_t end = begin + 1; end + k - 1 <= layers; ++end)
        if (const double rest = least[k - 1][end]; rest < least[k][begin])
          least[k][begin] = std::min(least[k][begin], std::max(cost(begin, end), rest));
  return least;
}

/// Empty: every cut is impossible.
std::vector<size_t> best_cuts(size_t layers, size_t stages, const StageSeconds& cost) {
  const auto least = least_of_tails(layers, stages, cost);
  const double best = least[stages][0];
  if (best == kImpossible) return {};
  std::vector<size_t> cuts{0};
  for (size_t left = stages; left > 0; --left) {
    size_t end = cuts.back() + 1;
    while (std::max(cost(cuts.back(), end), least[left - 1][end]) > best) ++end;
    cuts.push_back(end);
  }
  return cuts;
}

}  // namespace

std::vector<size_t> balanced(std::span<const LayerCost> layers, int stages, LinkCost link,
                             int64_t memory_limit) {
  if (stages < 1 || layers.size() < static_cast<size_t>(stages))
    throw UsageError(fmt::format("{} stages of {} layers; expected 1 or more, with a layer each",
                                 stages, layers.size()));
  const auto memory = [&](size_t begin, size_t end) {
    int64_t bytes = 0;
    for (size_t i = begin; i < end; ++i) bytes += layers[i].bytes_memory;
    return bytes;
  };
  const auto seconds = [&](size_t begin, size_t end) {
    if (memory(begin, end) > memory_limit) return kImpossible;
    double sum = 0;
    for (size_t i = begin; i < end; ++i) sum += layers[i].seconds;
    if (end == layers.size()) return sum;
    return sum + link.latency +
           link.seconds_per_byte * static_cast<double>(layers[end - 1].bytes_out);
  };
  const auto count = static_cast<size_t>(stages);
  if (auto cuts = best_cuts(layers.size(), count, seconds); !cuts.empty()) return cuts;

  const auto cuts = best_cuts(layers.size(), count, [&](size_t begin, size_t end) {
    return static_cast<double>(memory(begin, end));
  });
  size_t fullest = 0;
  for (size_t s = 1; s < count; ++s)
    if (memory(cuts[s], cuts[s + 1]) > memory(cuts[fullest], cuts[fullest + 1])) fullest = s;
  throw UsageError(fmt::format(
      "no cut of {} layers into {} stages fits {} bytes: at the best, stage {} (layers {} to {}) "
      "takes {}; try more stages, or smaller microbatches",
      layers.size(), stages, memory_limit, fullest, cuts[fullest], cuts[fullest + 1] - 1,
      memory(cuts[fullest], cuts[fullest + 1])));
}

}  // namespace tutti::parallel
