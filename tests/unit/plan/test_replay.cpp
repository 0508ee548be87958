// Replays: against a run whose ranks compute tick by tick, with and without some of them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>

#include "tutti/base/error.h"
#include "tutti/extras/replay/replay.h"

#include "tests/support/message_of.h"

namespace tutti::plan {
namespace {

using test::message_of;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// Ticks of one step: of each rank until it begins and until it has computed, of all thereafter.
struct Work {
  std::vector<int> late, compute;
  int follows = 0;
};

/// A world of ranks that know nothing but their own work, and wait.
class TickedRun {
 public:
  TickedRun(std::vector<Work> steps, std::vector<int> members)
      : steps_(std::move(steps)), members_(std::move(members)) {}

  RunRecord record() {
    RunRecord record{.strategy = "mirrored",
                     .shares = std::vector<double>(members_.size(), 1.0 / num_members())};
    for (const Work& step : steps_) record.steps.push_back(take(step));
    return record;
  }

 private:
  double num_members() const { return static_cast<double>(members_.size()); }

  RunStep take(const Work& work) {
    RunStep step{.samples = static_cast<int64_t>(members_.size()),
                 .there = std::vector<double>(members_.size(), -1)};
    int tick = 0, follows = work.follows;
    for (;; ++tick) {
      bool all = true;
      for (size_t i = 0; i < members_.size(); ++i) {
        const auto rank = static_cast<size_t>(members_[i]);
        if (step.there[i] < 0 && tick == work.late[rank] + work.compute[rank]) step.there[i] = tick;
        all = all && step.there[i] >= 0;
      }
      if (all && follows-- == 0) break;
    }
    step.seconds = tick;
    return step;
  }

  std::vector<Work> steps_;
  std::vector<int> members_;
};

std::vector<Work> random_work(int ranks, std::mt19937& random) {
  const auto ticks = [&](int most) { return std::uniform_int_distribution<>(0, most)(random); };
  std::vector<Work> steps(7);
  for (Work& step : steps) {
    for (int rank = 0; rank < ranks; ++rank) {
      step.late.push_back(ticks(2));
      step.compute.push_back(ticks(20));
    }
    step.follows = 1 + ticks(5);
  }
  return steps;
}

std::vector<int> ranks_in(unsigned mask, int ranks, bool inside) {
  std::vector<int> some;
  for (int rank = 0; rank < ranks; ++rank)
    if (((mask >> rank) & 1U) == (inside ? 1U : 0U)) some.push_back(rank);
  return some;
}

TEST(Replay, OfAnyRanksIsTheRunOfTheOthers) {
  std::mt19937 random(1);
  for (int ranks = 1; ranks <= 5; ++ranks) {
    const std::vector<Work> work = random_work(ranks, random);
    const RunRecord all = TickedRun(work, ranks_in(0, ranks, false)).record();
    for (unsigned mask = 0; mask + 1 < 1U << ranks; ++mask) {
      const RunRecord others = TickedRun(work, ranks_in(mask, ranks, false)).record();
      std::vector<double> expected;
      for (const RunStep& step : others.steps) expected.push_back(step.seconds);
      const Replayed replayed = replay(all, ranks_in(mask, ranks, true));
      EXPECT_EQ(replayed.seconds, expected) << ranks << " ranks without " << mask;
      EXPECT_DOUBLE_EQ(replayed.samples, 7.0 * static_cast<double>(others.shares.size()));
    }
  }
}

RunRecord record_of(const std::vector<RunStep>& steps) {
  RunRecord record{.strategy = "mirrored", .steps = steps};
  record.shares.assign(steps.at(0).there.size(), 1.0 / static_cast<double>(steps[0].there.size()));
  return record;
}

TEST(Replay, SaysMeanMedianAndSpeed) {
  const RunRecord record = record_of({{.samples = 60, .seconds = 1, .there = {0.5, 0.25}},
                                      {.samples = 60, .seconds = 4, .there = {0.5, 3.5}},
                                      {.samples = 30, .seconds = 1, .there = {0.5, 0.25}},
                                      {.samples = 60, .seconds = 2, .there = {0.5, 1.5}}});
  const Replayed as_it_was = replay(record);
  EXPECT_DOUBLE_EQ(as_it_was.mean(), 2);
  EXPECT_DOUBLE_EQ(as_it_was.median(), 1.5);
  EXPECT_DOUBLE_EQ(as_it_was.exposed, 0.5);
  EXPECT_DOUBLE_EQ(as_it_was.samples_per_second(), 210 / 8.0);
  const Replayed without = replay(record, std::vector{1});
  EXPECT_THAT(without.seconds, ElementsAre(1, 1, 1, 1));
  EXPECT_DOUBLE_EQ(without.samples_per_second(), 105 / 4.0);
  EXPECT_DOUBLE_EQ(replay(record_of({record.steps[0], record.steps[1], record.steps[3]})).median(),
                   2);
}

TEST(Replay, SharesSayWhoseSamplesAreGone) {
  RunRecord record = record_of({{.samples = 40, .seconds = 2, .there = {1, 1, 1}}});
  record.shares = {0.5, 0.25, 0.25};
  EXPECT_DOUBLE_EQ(replay(record, std::vector{0}).samples, 20);
  EXPECT_DOUBLE_EQ(replay(record, std::vector{2}).samples, 30);
}

TEST(RankCosts, AreWhatGoesOnOneRankAlone) {
  const auto costs = costs_of_ranks(record_of({{.seconds = 5, .there = {1, 4, 1}},
                                               {.seconds = 5, .there = {1, 4, 2}},
                                               {.seconds = 5, .there = {4, 1, 4}},
                                               {.seconds = 5, .there = {3, 2, 4}}}));
  const std::vector<RankCost> expected{{.there = 2.25, .last = 1, .seconds = 0},
                                       {.there = 2.75, .last = 2, .seconds = (3 + 2) / 4.0},
                                       {.there = 2.75, .last = 1, .seconds = 1 / 4.0}};
  ASSERT_EQ(costs.size(), 3U);
  for (size_t rank = 0; rank < 3; ++rank) {
    EXPECT_DOUBLE_EQ(costs[rank].there, expected[rank].there) << rank;
    EXPECT_EQ(costs[rank].last, expected[rank].last) << rank;
    EXPECT_DOUBLE_EQ(costs[rank].seconds, expected[rank].seconds) << rank;
  }
}

TEST(RankCosts, OfALoneRankAreNone) {
  const auto costs = costs_of_ranks(record_of({{.seconds = 5, .there = {4}}}));
  ASSERT_EQ(costs.size(), 1U);
  EXPECT_EQ(costs[0].last, 1);
  EXPECT_EQ(costs[0].seconds, 0);
}

TEST(Replay, WrongRanksAreNamed) {
  const RunRecord record = record_of({{.seconds = 5, .there = {4, 4}}});
  const auto answer = [&](const std::vector<int>& without) {
    return message_of<UsageError>([&] { replay(record, without); });
  };
  EXPECT_THAT(answer({2}), AllOf(HasSubstr("rank:2"), HasSubstr("expected rank:0 to rank:1")));
  EXPECT_THAT(answer({-1}), HasSubstr("rank:-1"));
  EXPECT_THAT(answer({1, 0}), HasSubstr("leave one in"));
  EXPECT_THAT(message_of<UsageError>([] { replay({.shares = {1}}); }), HasSubstr("no steps"));
}

TEST(Replay, ReadsRanks) {
  EXPECT_THAT(parse_ranks("rank:3"), ElementsAre(3));
  EXPECT_THAT(parse_ranks("rank:3,rank:0"), ElementsAre(3, 0));
  for (const char* wrong :
       {"", "3", "rank:", "rank:x", "rank:-1", "rank:1,", "rank:1,2", "rank: 1"})
    EXPECT_THAT(message_of<UsageError>([&] { parse_ranks(wrong); }),
                AllOf(HasSubstr(wrong), HasSubstr("expected rank:N, as rank:3")));
}

}  // namespace
}  // namespace tutti::plan
