// Limits do not pass while the process stands still.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <thread>

#include "tutti/base/deadline.h"
#include "tutti/base/detail/pause_meter.h"

namespace tutti {
namespace {

using detail::PauseMeter;
using namespace std::chrono_literals;

constexpr int64_t kGap = 5;

int64_t at(const PauseMeter& meter, int64_t now) {
  return meter.read([now] { return now; });
}

TEST(PauseMeter, IsTheTimeWhileBeatsCome) {
  PauseMeter meter(kGap);
  EXPECT_EQ(at(meter, 1'000), 1'000) << "before the first beat";
  for (int64_t now = 1'000; now < 1'100; now += 3) {
    meter.beat(now);
    for (int64_t later = now; later <= now + kGap; ++later) EXPECT_EQ(at(meter, later), later);
  }
  EXPECT_EQ(meter.paused(), 0);
}

// Whoever wakes up first, the thread that beats or another one.
TEST(PauseMeter, StandsStillInAPauseAndGoesOnFromThere) {
  PauseMeter meter(kGap);
  meter.beat(100);
  EXPECT_EQ(at(meter, 1'000'000), 105);
  meter.beat(1'000'000);
  EXPECT_EQ(at(meter, 1'000'000), 105);
  EXPECT_EQ(at(meter, 1'000'004), 109);
  meter.beat(1'000'003);
  meter.beat(2'000'000);
  EXPECT_EQ(at(meter, 2'000'000), 113) << "a second pause";
  EXPECT_EQ(meter.paused(), 2'000'000 - 113);
}

// It was paused between two instructions of read(): the time that it asks for comes after.
TEST(PauseMeter, NeverGoesBackNorBeyondAPauseWithinAReading) {
  PauseMeter meter(kGap);
  meter.beat(100);
  const int64_t during = meter.read([&meter] {
    meter.beat(1'000'000);
    return int64_t{1'000'001};
  });
  EXPECT_EQ(during, 105);
  EXPECT_GE(at(meter, 1'000'001), during);
}

TEST(PauseMeter, WithoutBeatsIsTheSteadyTimeAgain) {
  PauseMeter meter(kGap);
  meter.beat(100);
  meter.beat(200);
  const int64_t paused = meter.paused();
  meter.end();
  EXPECT_EQ(at(meter, 10'000), 10'000 - paused);
}

TEST(Clock, GoesOnInAChildOfFork) {
  Clock::now();
  const pid_t child = fork();
  if (child == 0) {
    const TimePoint begin = Clock::now();
    const auto steady = std::chrono::steady_clock::now();
    while (std::chrono::steady_clock::now() - steady < Clock::kLongestGap + 200ms)
      std::this_thread::yield();
    _exit(Clock::now() - begin >= Clock::kLongestGap + 200ms ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0) << "it has a thread of its own that beats";
}

constexpr Millis kLimit = 1'000ms;

// A pause cannot be had without time that passes.
TEST(Clock, StandsStillWhileTheProcessIsStopped) {
  const pid_t child = fork();
  if (child == 0) {
    const Deadline deadline(kLimit);
    std::raise(SIGSTOP);
    _exit(deadline.passed() ? 1 : 0);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, WUNTRACED), child);
  ASSERT_TRUE(WIFSTOPPED(status));
  std::this_thread::sleep_for(kLimit + 100ms);
  kill(child, SIGCONT);
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0) << "its limit passed while it was stopped";
}

}  // namespace
}  // namespace tutti
