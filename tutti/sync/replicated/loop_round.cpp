#include "tutti/sync/replicated/detail/loop_round.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>

#include "tutti/base/error.h"

namespace tutti::detail {
namespace {

enum SaysFlag : int32_t { kEnds = 1, kWaited = 2, kWeighs = 4, kHasLoss = 8 };

void put(int32_t* words, uint64_t bits) {
  words[0] = static_cast<int32_t>(static_cast<uint32_t>(bits));
  words[1] = static_cast<int32_t>(static_cast<uint32_t>(bits >> 32));
}

uint64_t bits_at(const int32_t* words) {
  return static_cast<uint32_t>(words[0]) |
         (static_cast<uint64_t>(static_cast<uint32_t>(words[1])) << 32);
}

bool same_value(double a, double b) { return a == b || (std::isnan(a) && std::isnan(b)); }

/// The first rank with data that differs from the first one with data; -1: none.
template <class Differs>
int first_that(const std::vector<RankSays>& ranks, int first, Differs differs) {
  for (size_t rank = static_cast<size_t>(first) + 1; rank < ranks.size(); ++rank)
    if (!ranks[rank].ends && differs(ranks[rank], ranks[static_cast<size_t>(first)]))
      return static_cast<int>(rank);
  return -1;
}

/// Those that waited for others made fewer, and get what these have.
void require_steps_alike(const std::vector<RankSays>& ranks) {
  const auto first = std::ranges::find(ranks, false, &RankSays::waited);
  const auto other = std::find_if(first, ranks.end(), [&](const RankSays& says) {
    return !says.waited && says.steps != first->steps;
  });
  if (other == ranks.end()) return;
  throw Mismatch(
      fmt::format("DistributedOptimizer: the optimizer of rank {} has made {} steps, that of rank "
                  "{} {}; a step "
                  "is made or left out on all ranks, by what all of them know",
                  first - ranks.begin(), first->steps, other - ranks.begin(), other->steps));
}

void require_weights_alike(const std::vector<RankSays>& ranks, int first) {
  const int other = first_that(ranks, first, [](const RankSays& a, const RankSays& b) {
    return a.weight.has_value() != b.weight.has_value();
  });
  if (other < 0) return;
  const bool weighs = ranks[static_cast<size_t>(first)].weight.has_value();
  throw Mismatch(fmt::format(
      "DistributedOptimizer: rank {} has called set_weight(), rank {} has not; call it on every "
      "rank, or on none",
      weighs ? first : other, weighs ? other : first));
}

void require_losses_alike(const std::vector<RankSays>& ranks, int first, bool same_losses) {
  const auto& own = ranks[static_cast<size_t>(first)];
  const int other = first_that(ranks, first, [](const RankSays& a, const RankSays& b) {
    return a.loss.has_value() != b.loss.has_value();
  });
  if (other >= 0)
    throw Mismatch(fmt::format(
        "DistributedOptimizer: rank {} calls step(closure), rank {} step() or synchronize(); every "
        "rank gives a closure, or none does",
        own.loss ? first : other, own.loss ? other : first));
  if (!own.loss || !same_losses) return;
  const int unlike = first_that(ranks, first, [](const RankSays& a, const RankSays& b) {
    return !same_value(*a.loss, *b.loss);
  });
  if (unlike >= 0)
    throw Mismatch(fmt::format(
        "DistributedOptimizer: step(closure): the closure of rank {} returned the loss {}, that of "
        "rank {} {}; an optimizer that looks at it would go another way on each rank. Return the "
        "loss of all, or let .average_losses make it",
        first, *own.loss, unlike, *ranks[static_cast<size_t>(unlike)].loss));
}

}  // namespace

std::array<int32_t, kRankWords> rank_words(const RankSays& says) {
  std::array<int32_t, kRankWords> words{};
  words[0] = (says.ends ? kEnds : 0) | (says.waited ? kWaited : 0) | (says.weight ? kWeighs : 0) |
             (says.loss ? kHasLoss : 0);
  put(&words[1], std::bit_cast<uint64_t>(says.weight.value_or(0)));
  put(&words[3], std::bit_cast<uint64_t>(says.loss.value_or(0)));
  put(&words[5], says.parameters);
  put(&words[7], says.rates);
  put(&words[9], says.steps);
  return words;
}

std::vector<RankSays> ranks_of(std::span<const int32_t> words) {
  std::vector<RankSays> ranks;
  for (size_t at = 0; at < words.size(); at += kRankWords) {
    const int32_t flags = words[at];
    RankSays says{.ends = (flags & kEnds) != 0, .waited = (flags & kWaited) != 0};
    if ((flags & kWeighs) != 0) says.weight = std::bit_cast<double>(bits_at(&words[at + 1]));
    if ((flags & kHasLoss) != 0) says.loss = std::bit_cast<double>(bits_at(&words[at + 3]));
    says.parameters = bits_at(&words[at + 5]);
    says.rates = bits_at(&words[at + 7]);
    says.steps = bits_at(&words[at + 9]);
    ranks.push_back(says);
  }
  return ranks;
}

Round round_of(const std::vector<RankSays>& ranks, ReduceOp op, bool same_losses) {
  require_steps_alike(ranks);
  Round round{.all_end = true, .first = -1};
  int up_to_date = -1, with_data = 0;
  double total = 0, losses = 0;
  for (int rank = 0; rank < static_cast<int>(ranks.size()); ++rank) {
    const RankSays& says = ranks[static_cast<size_t>(rank)];
    round.fell_behind |= says.waited;
    round.parameters_differ |= says.parameters != ranks[0].parameters;
    if (!says.waited && up_to_date < 0) up_to_date = rank;
    if (says.ends) continue;
    round.all_end = false;
    if (round.first < 0) round.first = rank;
    round.rates_differ |= says.rates != ranks[static_cast<size_t>(round.first)].rates;
    ++with_data;
    const double weight = says.weight.value_or(1);
    total += weight;
    if (weight != 0) losses += weight * says.loss.value_or(0);
  }
  if (round.all_end) {
    round.first = up_to_date;
    return round;
  }
  require_weights_alike(ranks, round.first);
  require_losses_alike(ranks, round.first, same_losses);
  if (total == 0)
    throw UsageError(
        "DistributedOptimizer: set_weight(): the weights of all ranks with data are 0, so that the "
        "step has no mean");
  const auto size = static_cast<double>(ranks.size());
  if (op == ReduceOp::mean && total != size) round.scale = size / total;
  round.loss = same_losses           ? ranks[static_cast<size_t>(round.first)].loss.value_or(0)
               : op == ReduceOp::sum ? losses
                                     : losses / total;
  return round;
}

}  // namespace tutti::detail
