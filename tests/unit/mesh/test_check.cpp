// The checker of schedules: what it refuses, and that whatever it lets through can be carried out.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>
#include <tuple>

#include "tutti/base/error.h"
#include "tutti/mesh/check.h"
#include "tutti/mesh/schedule.h"

#include "tests/support/message_of.h"

namespace tutti::mesh {
namespace {

using testing::HasSubstr;

std::string fault_of_csv(std::string_view text) {
  return fault_of(from_csv(text, "own")).value_or("none");
}

TEST(ScheduleCheck, NamesRankActionAndWhy) {
  EXPECT_EQ(fault_of_csv("F0,F1,B0,B1\nF0,B0,F1,B1\n"), "none");
  EXPECT_EQ(fault_of_csv("F0,F1,B0\nF0,B0,F1,B1\n"), "rank 0: B 0.1 is missing at its end");
  EXPECT_EQ(fault_of_csv("F0,F1,B0,B1\nF0,B0,F1,B0,B1\n"),
            "rank 1, action 4 (B 0.0): is there twice");
  EXPECT_EQ(fault_of_csv("F1,F0,B0,B1\nF0,B0,F1,B1\n"),
            "rank 0, action 1 (F 0.1): F 0.0 is missing before it");
  EXPECT_EQ(fault_of_csv("F0,B0,B1,F1\n"),
            "rank 0, action 3 (B 0.1): comes before F 0.1, which it needs");
  EXPECT_EQ(fault_of_csv("F0,B0,W0\n"),
            "rank 0, action 3 (W 0.0): backward is not split in this schedule");
  EXPECT_EQ(fault_of_csv("# split\nF0,W0,B0\n"),
            "rank 0, action 2 (W 0.0): comes before B 0.0, which it needs");
  EXPECT_EQ(fault_of_csv("# split\nF0,B0\n"), "rank 0: W 0.0 is missing at its end");
  EXPECT_EQ(fault_of_csv("F0,B0,F1,B1\nF0,F1,B0,B1\n"),
            "ranks wait for each other: rank 0 at B 0.0 for B 0.0 of rank 1; "
            "rank 1 at F 0.1 for F 0.1 of rank 0");
  Schedule beyond = gpipe({.ranks = 1, .microbatches = 2});
  beyond.actions[0][1].microbatch = 2;
  EXPECT_EQ(fault_of(beyond), "rank 0, action 2 (F 0.2): there are 2 microbatches");
  beyond.actions[0][1] = {.kind = Kind::forward, .chunk = -1, .microbatch = 1};
  EXPECT_EQ(fault_of(beyond), "rank 0, action 2 (F -1.1): there are 1 chunks");
  EXPECT_THAT(test::message_of<DataError>([&] { check(beyond); }),
              HasSubstr("schedule gpipe: rank 0, action 2"));
}

// In the most obvious way: does whatever can be done next until there is no more, and looks at
// gradients and messages of each chunk for their order.
bool can_be_carried_out(const Schedule& schedule) {
  std::set<std::tuple<Kind, int, int>> done;
  std::vector<size_t> at(schedule.actions.size());
  const auto possible = [&](int rank, const Action& action) {
    const int stage = schedule.stage_of(rank, action.chunk);
    const auto is_done = [&](Kind kind, int of) {
      return of < 0 || of >= schedule.stages() || done.contains({kind, of, action.microbatch});
    };
    if (done.contains({action.kind, stage, action.microbatch})) return false;
    if (action.microbatch > 0 && !done.contains({action.kind, stage, action.microbatch - 1}))
      return false;
    if (action.kind == Kind::forward) return is_done(Kind::forward, stage - 1);
    if (action.kind == Kind::weight) return schedule.split && is_done(Kind::backward, stage);
    return is_done(Kind::forward, stage) && is_done(Kind::backward, stage + 1);
  };
  for (bool moved = true; moved;) {
    moved = false;
    for (int rank = 0; rank < schedule.ranks(); ++rank) {
      const auto& actions = schedule.actions[static_cast<size_t>(rank)];
      size_t& next = at[static_cast<size_t>(rank)];
      if (next == actions.size() || !possible(rank, actions[next])) continue;
      const int stage = schedule.stage_of(rank, actions[next].chunk);
      done.insert({actions[next].kind, stage, actions[next].microbatch});
      ++next;
      moved = true;
    }
  }
  for (size_t rank = 0; rank < at.size(); ++rank)
    if (at[rank] < schedule.actions[rank].size()) return false;
  return std::ssize(done) ==
         int64_t{schedule.split ? 3 : 2} * schedule.stages() * schedule.microbatches;
}

std::string mutate(Schedule& schedule, std::mt19937& random) {
  const auto below = [&](size_t n) {
    return std::uniform_int_distribution<size_t>(0, n - 1)(random);
  };
  auto& actions = schedule.actions[below(schedule.actions.size())];
  const size_t i = below(actions.size());
  const size_t j = below(actions.size());
  switch (below(3)) {
    case 0: actions.erase(actions.begin() + static_cast<std::ptrdiff_t>(i)); return "dropped";
    case 1: std::swap(actions[i], actions[j]); return "swapped";
    default: {
      const Action twice = actions[i];
      actions.insert(actions.begin() + static_cast<std::ptrdiff_t>(j), twice);
      return "doubled";
    }
  }
}

TEST(ScheduleCheck, WrongSchedulesAreRefusedAndHarmlessOnesAreNot) {
  std::mt19937 random(1);
  int refused = 0;
  for (int i = 0; i < 2000; ++i) {
    const auto& names = schedule_names();
    const int ranks = 1 + static_cast<int>(random() % 4);
    Schedule schedule = schedule_by_name(
        names[random() % names.size()],
        {.ranks = ranks, .microbatches = ranks * (1 + static_cast<int>(random() % 3))});
    ASSERT_TRUE(can_be_carried_out(schedule));
    const std::string how = mutate(schedule, random);
    const auto fault = fault_of(schedule);
    EXPECT_EQ(!fault, can_be_carried_out(schedule))
        << how << ": " << fault.value_or("let through") << "\n"
        << to_csv(schedule);
    EXPECT_TRUE(fault || how == "swapped") << how << "\n" << to_csv(schedule);
    refused += fault ? 1 : 0;
  }
  EXPECT_GT(refused, 1000);
}

}  // namespace
}  // namespace tutti::mesh
