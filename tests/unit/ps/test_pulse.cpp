// Whoever is busy is heard of all the same.
#include <gmock/gmock.h>

#include <condition_variable>
#include <mutex>

#include "tutti/base/error.h"
#include "tutti/ps/server/pulse.h"

namespace tutti::ps {
namespace {

constexpr Millis kPatience{30'000};
constexpr Millis kHour{3'600'000};

// A pulse whose beats are counted.
struct Counted {
  Counted(Millis longest_turn, Millis between)
      : pulse(mutex, longest_turn, [this, between] {
          ++beats;
          changed.notify_all();
          return between;
        }) {}

  bool reaches(std::unique_lock<std::mutex>& lock, int wanted) {
    return changed.wait_for(lock, kPatience, [&] { return beats >= wanted; });
  }

  std::mutex mutex;
  std::condition_variable changed;
  int beats = 0;
  Pulse pulse;  // last: it uses the others
};

// The turn does not end before three beats have come: without a pulse none would.
TEST(Pulse, BeatsWhileATurnLasts) {
  Counted counted(kPatience, Millis{1});
  std::unique_lock lock(counted.mutex);
  counted.pulse.begin_turn(Clock::now());
  EXPECT_TRUE(counted.reaches(lock, counted.beats + 3));
  counted.pulse.end_turn();
}

// What it would wait for by the clock is an hour away.
TEST(Pulse, GoesOnAtOnceWhenATurnThatHungHasEnded) {
  Counted counted(kHour, Millis{1});
  Pulse& pulse = counted.pulse;
  std::unique_lock lock(counted.mutex);
  pulse.begin_turn(Clock::now() - 2 * kHour);
  for (const Deadline deadline(kPatience); !pulse.hangs() && !deadline.passed();) {
    lock.unlock();
    std::this_thread::yield();
    lock.lock();
  }
  ASSERT_TRUE(pulse.hangs());
  const int before = counted.beats;
  pulse.end_turn();
  pulse.begin_turn(Clock::now());  // of the same breath
  EXPECT_TRUE(counted.reaches(lock, before + 1));
}

TEST(Pulse, BeatsSoonerWhenItIsWoken) {
  Counted counted(kPatience, kHour);
  std::unique_lock lock(counted.mutex);
  ASSERT_TRUE(counted.reaches(lock, 1));
  counted.pulse.wake();
  EXPECT_TRUE(counted.reaches(lock, 2));
}

TEST(Pulse, AnErrorEndsItAndIsKept) {
  std::mutex mutex;
  Pulse pulse(mutex, kPatience, []() -> Millis { throw Error("no memory"); });
  const Deadline deadline(kPatience);
  const auto failure = [&] {
    const std::lock_guard lock(mutex);
    return pulse.failure();
  };
  while (failure().empty() && !deadline.passed()) std::this_thread::yield();
  EXPECT_EQ(failure(), "no memory");
}

}  // namespace
}  // namespace tutti::ps
