// What ranks of a DistributedOptimizer say in a step, and what follows from it.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tutti/base/error.h"
#include "tutti/sync/replicated/detail/loop_round.h"

#include "tests/support/expect.h"

namespace tutti {
namespace {

using detail::RankSays;
using detail::round_of;

TEST(LoopRound, WordsComeBack) {
  const std::vector<RankSays> ranks{
      {},
      {.ends = true, .waited = true, .parameters = 0xfedcba9876543210},
      {.parameters = 1, .rates = 0x8000000000000002, .steps = uint64_t{3} << 32},
      {.weight = 0.1, .loss = -0.0},
      {.weight = 0, .loss = std::numeric_limits<double>::infinity(), .parameters = ~uint64_t{0}}};
  std::vector<int32_t> words;
  for (const RankSays& each : ranks)
    for (const int32_t word : detail::rank_words(each)) words.push_back(word);
  EXPECT_EQ(detail::ranks_of(words), ranks);
}

TEST(LoopRound, MeansAreOfRanksWithData) {
  const auto scale = [](const std::vector<RankSays>& ranks) {
    return round_of(ranks, ReduceOp::mean, true).scale;
  };
  EXPECT_EQ(scale({{}, {}, {}}), 1);
  EXPECT_EQ(scale({{.ends = true}, {}, {.ends = true}}), 3);
  EXPECT_EQ(scale({{.weight = 3}, {.weight = 5}, {.ends = true}}), 3 / 8.0);
  EXPECT_EQ(round_of({{.ends = true}, {}}, ReduceOp::sum, true).scale, 1);
  const auto losses = round_of({{.weight = 1, .loss = 2}, {.weight = 3, .loss = 6}, {.ends = true}},
                               ReduceOp::mean, false);
  EXPECT_EQ(losses.loss, 5);
  EXPECT_EQ(round_of({{.ends = true}, {}}, ReduceOp::mean, true).first, 1);
}

TEST(LoopRound, LossesOfSumsAreAdded) {
  EXPECT_EQ(round_of({{.loss = 2}, {.loss = 6}, {.ends = true}}, ReduceOp::sum, false).loss, 8);
  EXPECT_EQ(round_of({{.loss = 2}, {.loss = 6}, {.ends = true}}, ReduceOp::mean, false).loss, 4);
}

TEST(LoopRound, RatesAreComparedOfRanksWithDataAlone) {
  const auto differ = [](const std::vector<RankSays>& ranks) {
    return round_of(ranks, ReduceOp::mean, true).rates_differ;
  };
  EXPECT_TRUE(differ({{.rates = 1}, {.rates = 1}, {.rates = 2}}));
  EXPECT_FALSE(differ({{.ends = true, .rates = 3}, {.rates = 1}, {.rates = 1}}));
}

TEST(LoopRound, StepsLeftOutOnOneRankAreAMismatchThatNamesTwo) {
  const auto said = [](const std::vector<RankSays>& ranks) {
    return test::message_of<Mismatch>([&] { round_of(ranks, ReduceOp::mean, true); });
  };
  EXPECT_THAT(said({{.steps = 4}, {.steps = 4}, {.steps = 3}}),
              HasSubstr("of rank 0 has made 4 steps, that of rank 2 3"));
  EXPECT_THAT(said({{.ends = true, .waited = true, .steps = 1}, {.steps = 4}, {.steps = 5}}),
              HasSubstr("of rank 1 has made 4 steps, that of rank 2 5"));
  // At their ends too, and not of those that only waited.
  EXPECT_THAT(said({{.ends = true, .steps = 4}, {.ends = true, .steps = 3}}),
              HasSubstr("of rank 0 has made 4 steps, that of rank 1 3"));
  EXPECT_EQ(round_of({{.ends = true, .waited = true, .steps = 1}, {.ends = true, .steps = 4}},
                     ReduceOp::mean, true)
                .first,
            1);
}

TEST(LoopRound, TheLastToJoinHasWhatOthersTake) {
  const auto last = round_of({{.ends = true, .waited = true}, {.ends = true}, {.ends = true}},
                             ReduceOp::mean, true);
  EXPECT_TRUE(last.all_end);
  EXPECT_TRUE(last.fell_behind);
  EXPECT_EQ(last.first, 1);
  EXPECT_FALSE(round_of({{.ends = true}, {.ends = true}}, ReduceOp::mean, true).fell_behind);
}

TEST(LoopRound, NotANumberIsTheSameLossOnAllRanks) {
  const double nan = std::nan("");
  EXPECT_TRUE(std::isnan(round_of({{.loss = nan}, {.loss = nan}}, ReduceOp::mean, true).loss));
  EXPECT_THROW(round_of({{.loss = nan}, {.loss = 1}}, ReduceOp::mean, true), Mismatch);
}

}  // namespace
}  // namespace tutti
