// Whoever is busy is heard of all the same.
#include <gmock/gmock.h>

#include <condition_variable>
#include <mutex>

#include "tutti/base/error.h"
#include "tutti/ps/pulse.h"

namespace tutti::ps {
namespace {

constexpr Millis kPatience{30'000};

// The turn does not end before three beats have come: without a pulse none would.
TEST(Pulse, BeatsWhileATurnLasts) {
  std::mutex mutex;
  std::condition_variable changed;
  int beats = 0;
  Pulse pulse(mutex, kPatience, [&] {
    ++beats;
    changed.notify_all();
    return Millis{1};
  });
  std::unique_lock lock(mutex);
  pulse.begin_turn(Clock::now());
  const int before = beats;
  EXPECT_TRUE(changed.wait_for(lock, kPatience, [&] { return beats >= before + 3; }));
  pulse.end_turn();
}

// What it would wait for by the clock is an hour away.
TEST(Pulse, GoesOnAtOnceWhenATurnThatHungHasEnded) {
  constexpr Millis kHour{3'600'000};
  std::mutex mutex;
  std::condition_variable changed;
  int beats = 0;
  Pulse pulse(mutex, kHour, [&] {
    ++beats;
    changed.notify_all();
    return Millis{1};
  });
  std::unique_lock lock(mutex);
  pulse.begin_turn(Clock::now() - 2 * kHour);
  for (const Deadline deadline(kPatience); !pulse.hangs() && !deadline.passed();) {
    lock.unlock();
    std::this_thread::yield();
    lock.lock();
  }
  ASSERT_TRUE(pulse.hangs());
  const int before = beats;
  pulse.end_turn();
  pulse.begin_turn(Clock::now());  // of the same breath
  EXPECT_TRUE(changed.wait_for(lock, kPatience, [&] { return beats > before; }));
}

TEST(Pulse, BeatsSoonerWhenItIsWoken) {
  constexpr Millis kHour{3'600'000};
  std::mutex mutex;
  std::condition_variable changed;
  int beats = 0;
  Pulse pulse(mutex, kPatience, [&] {
    ++beats;
    changed.notify_all();
    return kHour;
  });
  std::unique_lock lock(mutex);
  ASSERT_TRUE(changed.wait_for(lock, kPatience, [&] { return beats == 1; }));
  pulse.wake();
  EXPECT_TRUE(changed.wait_for(lock, kPatience, [&] { return beats == 2; }));
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
