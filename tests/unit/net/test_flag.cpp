#include <gtest/gtest.h>

#include <cstring>
#include <thread>

#include "tutti/net/flag.h"

namespace tutti {
namespace {

TEST(Flag, ComparesByDifferenceSoThatItMayWrap) {
  FlagLine line{};
  Flag& flag = line.flag;
  EXPECT_TRUE(flag.reached(0));
  EXPECT_FALSE(flag.reached(1));
  EXPECT_TRUE(flag.reached(0xffffffffu)) << "one before zero";
  flag.set(0x80000005u);
  EXPECT_TRUE(flag.reached(0x80000005u));
  EXPECT_FALSE(flag.reached(0x80000006u));
  flag.set(0xffffffffu);
  EXPECT_FALSE(flag.reached(0u));
  flag.set(3);
  EXPECT_TRUE(flag.reached(0xfffffff0u));
}

TEST(Flag, SleepReturnsAtOnceWhenReachedAndByItselfAtTheLimit) {
  FlagLine line{};
  line.flag.set(2);
  line.flag.sleep_until(1, std::chrono::milliseconds(60'000));
  line.flag.sleep_until(3, std::chrono::milliseconds(1));
  EXPECT_FALSE(line.flag.reached(3));
  EXPECT_FALSE(line.flag.has_sleepers());
}

// A lost wake-up would take a minute a round; the test's own limit would end it.
TEST(Flag, WakesSleepersAndShowsWhatWasWrittenBefore) {
  FlagLine ping{}, pong{};
  uint32_t carried = 0;
  constexpr uint32_t kRounds = 2'000;
  std::thread other([&] {
    for (uint32_t round = 1; round <= kRounds; ++round) {
      while (!ping.flag.reached(round))
        ping.flag.sleep_until(round, std::chrono::milliseconds(60'000));
      EXPECT_EQ(carried, round);
      carried = round * 2;
      pong.flag.set(round);
    }
  });
  for (uint32_t round = 1; round <= kRounds; ++round) {
    carried = round;
    ping.flag.set(round);
    while (!pong.flag.reached(round))
      pong.flag.sleep_until(round, std::chrono::milliseconds(60'000));
    EXPECT_EQ(carried, round * 2);
  }
  other.join();
}

TEST(WaitPolicy, SpinsLongOnlyOnCoresOfItsOwn) {
  const int crowded = choose_wait_policy(4, 2, true).spin_pauses;
  const int unpinned = choose_wait_policy(2, 2, false).spin_pauses;
  EXPECT_GT(unpinned, crowded);
  EXPECT_EQ(choose_wait_policy(4, 2, false).spin_pauses, crowded);
  EXPECT_GT(choose_wait_policy(2, 2, true).spin_pauses, unpinned);
}

}  // namespace
}  // namespace tutti
