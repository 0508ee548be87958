#include <gtest/gtest.h>
#include <sched.h>

#include <atomic>
#include <future>
#include <memory>
#include <utility>

#include "tutti/base/idle_pace.h"

namespace tutti {
namespace {

using namespace std::chrono_literals;

constexpr Millis kLong{60'000};

TEST(IdlePace, ATurnIsGivenByAThreadThatRunsOnlyOnIdleCores) {
  std::atomic<int> policy = -1, turns = 0;
  IdlePace pace(kLong, [&] {
    policy = sched_getscheduler(0);
    ++turns;
  });
  for (int i = 0; i < 100; ++i) pace.turn();
  EXPECT_EQ(policy, SCHED_IDLE);
  EXPECT_EQ(turns, 100) << "a turn for each piece";
  EXPECT_NE(sched_getscheduler(0), SCHED_IDLE) << "who works could not come back";
}

// A machine on which no core is ever idle.
TEST(IdlePace, WhoIsWaitedForNeedsNoIdleCore) {
  auto never = std::make_shared<std::promise<void>>();
  const std::shared_future<void> released = never->get_future();
  std::promise<void> asked;
  IdlePace pace(kLong, [&asked, released, first = true]() mutable {
    if (std::exchange(first, false)) asked.set_value();
    released.wait();
  });
  auto work = std::async(std::launch::async, [&] {
    for (int i = 0; i < 3; ++i) pace.turn();
  });
  asked.get_future().wait();
  pace.hurry();
  EXPECT_EQ(work.wait_for(kLong), std::future_status::ready);
  never->set_value();
}

TEST(IdlePace, PatienceHasAnEnd) {
  auto never = std::make_shared<std::promise<void>>();
  IdlePace pace(Millis{1}, [released = never->get_future().share()] { released.wait(); });
  for (int i = 0; i < 3; ++i) pace.turn();
  never->set_value();
}

TEST(IdlePace, ItsEndWaitsForNoIdleCore) {
  auto never = std::make_shared<std::promise<void>>();
  {
    IdlePace pace(Millis{1}, [released = never->get_future().share()] { released.wait(); });
    pace.turn();
  }
  never->set_value();
}

}  // namespace
}  // namespace tutti
