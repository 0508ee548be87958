/// What ranks of a DistributedOptimizer say of themselves as they hand in gradients, and what
/// follows from it on all of them. Not for users. Without LibTorch. Thread rule: pure functions.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "tutti/comm/engine/engine.h"

namespace tutti::detail {

/// One rank in one round: a step, or a call of its closure.
struct RankSays {
  bool ends = false;             ///< it has no more data, and only takes part
  bool waited = false;           ///< so it was in a round before: it has not made that step
  std::optional<double> weight;  ///< none: ranks count alike
  std::optional<double> loss;    ///< of a closure
  uint64_t parameters = 0;       ///< a hash of which parameters are trained
  uint64_t rates = 0;            ///< a hash of the learning rates
  uint64_t steps = 0;            ///< that its optimizer has made, since all were alike
  bool operator==(const RankSays&) const = default;
};

constexpr int64_t kRankWords = 11;
std::array<int32_t, kRankWords> rank_words(const RankSays& says);
/// `words` of all ranks, by rank.
std::vector<RankSays> ranks_of(std::span<const int32_t> words);

struct Round {
  bool all_end = false;
  int first = 0;  ///< the lowest rank that has data; where all end, that has made all steps
  bool fell_behind = false;  ///< some rank waited for others
  bool parameters_differ = false;
  bool rates_differ = false;  ///< of ranks with data
  double scale = 1;           ///< of the reduced gradients, beside the mean or sum over all ranks
  double loss = 0;            ///< of the ranks with data: the mean, by weight, or the sum, as `op`
};

/// The same on all ranks. Throws, on all: Mismatch naming two ranks that have made other numbers of
/// steps, of which one has a weight and the other none, one calls a closure and the other none, or
/// whose closures' losses differ while `same_losses`; UsageError where all weights are 0.
Round round_of(const std::vector<RankSays>& ranks, ReduceOp op, bool same_losses);

}  // namespace tutti::detail
