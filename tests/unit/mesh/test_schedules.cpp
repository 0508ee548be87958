// Pipeline schedules: through the checker, and against the closed forms of their papers.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "tutti/base/error.h"
#include "tutti/mesh/check.h"
#include "tutti/mesh/schedule.h"
#include "tutti/mesh/simulate.h"

#include "tests/support/message_of.h"

namespace tutti::mesh {
namespace {

using testing::Each;
using testing::HasSubstr;
using testing::Le;

constexpr int kMostRanks = 8;
constexpr int kMostMicrobatches = 16;

void for_plans(const std::function<void(int p, int m)>& fn) {
  for (int p = 1; p <= kMostRanks; ++p)
    for (int m = 1; m <= kMostMicrobatches; ++m) {
      SCOPED_TRACE(fmt::format("{} ranks, {} microbatches", p, m));
      fn(p, m);
    }
}

double seconds_of(const Schedule& schedule) { return simulate(schedule, {}).seconds; }

void expect_sound(const Schedule& schedule) {
  EXPECT_EQ(fault_of(schedule).value_or("none"), "none") << to_csv(schedule);
}

// Units of time: F = B = W = 1. Ranks that wait for nothing are busy for 3 m.
TEST(Schedules, GpipeAndOneForwardOneBackward) {
  for_plans([](int p, int m) {
    const Schedule all = gpipe({.ranks = p, .microbatches = m});
    const Schedule pairs = one_f_one_b({.ranks = p, .microbatches = m});
    for (const Schedule& schedule : {all, pairs}) {
      expect_sound(schedule);
      EXPECT_DOUBLE_EQ(seconds_of(schedule), 3 * (m + p - 1)) << schedule.name;
      EXPECT_NEAR(simulate(schedule, {}).bubble(), (p - 1.0) / (m + p - 1), 1e-12);
    }
    for (int rank = 0; rank < p; ++rank) {
      EXPECT_EQ(peak_activations(all)[static_cast<size_t>(rank)], m);
      EXPECT_EQ(peak_activations(pairs)[static_cast<size_t>(rank)], std::min(m, p - rank));
    }
  });
}

TEST(Schedules, Interleaved) {
  for_plans([](int p, int m) {
    for (int v = 1; v <= 3; ++v) {
      if (m % p != 0) continue;
      const Schedule schedule = interleaved({.ranks = p, .microbatches = m, .chunks = v});
      expect_sound(schedule);
      EXPECT_DOUBLE_EQ(seconds_of(schedule), 3 * (v * m + p - 1));
      EXPECT_NEAR(simulate(schedule, {}).bubble(), (p - 1.0) / (v * m + p - 1), 1e-12);
      for (int rank = 0; rank < p; ++rank) {
        const int ahead = v == 1 ? p - rank - 1 : 2 * (p - rank - 1) + (v - 1) * p;
        EXPECT_EQ(peak_activations(schedule)[static_cast<size_t>(rank)],
                  std::min(v * m, ahead + 1));
      }
    }
  });
}

// Below p microbatches there are too few of them to fill the ranks, whatever the schedule.
TEST(Schedules, ZeroBubbleH1) {
  for_plans([](int p, int m) {
    const Schedule schedule = zb_h1({.ranks = p, .microbatches = m});
    expect_sound(schedule);
    EXPECT_DOUBLE_EQ(seconds_of(schedule), 3 * m + p - 1 + std::max(0, p - m));
    EXPECT_THAT(peak_activations(schedule), Each(std::min(m, p)));
    if (m < p) return;
    EXPECT_NEAR(simulate(schedule, {}).bubble(), (p - 1.0) / (3 * m + p - 1), 1e-12);
  });
}

TEST(Schedules, ThereAndBackWithoutWaiting) {
  for_plans([](int p, int m) {
    const Schedule schedule = zb_v({.ranks = p, .microbatches = m});
    expect_sound(schedule);
    EXPECT_THAT(peak_activations(schedule), Each(Le(std::min(2 * m, 2 * p))));
    if (m < 2 * p - 1) return;
    EXPECT_DOUBLE_EQ(seconds_of(schedule), 6 * m + p - 1);
    EXPECT_THAT(simulate(schedule, {}).waiting, Each(0));
    EXPECT_THAT(peak_activations(schedule), Each(2 * p));
  });
}

TEST(Schedules, DualPipeFolded) {
  for_plans([](int p, int m) {
    const Schedule schedule = dualpipe_v({.ranks = p, .microbatches = m});
    expect_sound(schedule);
    EXPECT_THAT(peak_activations(schedule), Each(Le(2 * p + 1)));
    if (m < 2 * p) return;
    EXPECT_DOUBLE_EQ(seconds_of(schedule), 6 * m + p - 1);
  });
}

TEST(Schedules, PlacesOfStages) {
  for (const Placement placement : {Placement::loop, Placement::vee})
    for (int p = 1; p <= 4; ++p) {
      Schedule schedule{.name = "places", .chunks = 3, .placement = placement};
      schedule.actions.resize(static_cast<size_t>(p));
      std::vector<int> stages;
      for (int rank = 0; rank < p; ++rank)
        for (int chunk = 0; chunk < 3; ++chunk) {
          const int stage = schedule.stage_of(rank, chunk);
          EXPECT_EQ(schedule.rank_of(stage), rank);
          EXPECT_EQ(schedule.chunk_of(stage), chunk);
          stages.push_back(stage);
        }
      std::ranges::sort(stages);
      std::vector<int> expected(static_cast<size_t>(3 * p));
      std::iota(expected.begin(), expected.end(), 0);
      EXPECT_EQ(stages, expected);
    }
  Schedule vee = zb_v({.ranks = 3, .microbatches = 1});
  EXPECT_EQ(vee.rank_of(2), vee.rank_of(3));
}

TEST(Schedules, ByName) {
  for (const std::string& name : schedule_names())
    EXPECT_EQ(schedule_by_name(name, {.ranks = 2, .microbatches = 4}).name, name);
  const auto told = [](const std::string& name, const Plan& plan) {
    return test::message_of<UsageError>([&] { schedule_by_name(name, plan); });
  };
  EXPECT_THAT(told("zb_h2", {}), HasSubstr("did you mean \"zb-h1\"?"));
  EXPECT_THAT(told("interleaved", {.ranks = 3, .microbatches = 8}),
              HasSubstr("8 microbatches do not divide by 3 ranks; use 6 or 9"));
  EXPECT_THAT(told("interleaved", {.ranks = 3, .microbatches = 2}), HasSubstr("use 3"));
  EXPECT_THAT(told("zb-v", {.chunks = 3}), HasSubstr("has 2 chunks a rank, not 3"));
  EXPECT_THAT(told("gpipe", {.chunks = 2}), HasSubstr("has 1 chunk a rank, not 2"));
  EXPECT_THAT(told("1f1b", {.ranks = 0}), HasSubstr("0 ranks"));
}

TEST(Schedules, CsvThereAndBack) {
  for (const std::string& name : schedule_names()) {
    const Schedule schedule = schedule_by_name(name, {.ranks = 3, .microbatches = 6});
    const Schedule read = from_csv(to_csv(schedule), name);
    EXPECT_EQ(read.actions, schedule.actions);
    EXPECT_EQ(read.chunks, schedule.chunks);
    EXPECT_EQ(read.microbatches, schedule.microbatches);
    EXPECT_EQ(read.split, schedule.split);
    EXPECT_EQ(read.placement, schedule.placement);
  }
  EXPECT_EQ(to_csv(one_f_one_b({.ranks = 2, .microbatches = 2})),
            "# 1f1b\nF0,F1,B0,B1\nF0,B0,F1,B1\n");
  const auto told = [](std::string_view text) {
    return test::message_of<DataError>([&] { from_csv(text, "own.csv"); });
  };
  EXPECT_THAT(told("F0,B0\n\nF0, X0\n"), HasSubstr("own.csv, line 3, field 2: \"X0\"; expected"));
  EXPECT_THAT(told("F0,,B0\n"), HasSubstr("line 1, field 2: \"\""));
  EXPECT_THAT(told("F-1\n"), HasSubstr("field 1"));
  EXPECT_THAT(told("F1.\n"), HasSubstr("field 1"));
  EXPECT_THAT(told("F99999999999\n"), HasSubstr("field 1"));
  EXPECT_THAT(told("# nothing\n"), HasSubstr("no lines of actions"));
}

}  // namespace
}  // namespace tutti::mesh
