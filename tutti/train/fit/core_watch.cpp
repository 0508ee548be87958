#include "tutti/train/fit/detail/core_watch.h"

#include <fmt/format.h>

#include <ctime>

#include "tutti/base/log.h"

namespace tutti::detail {
namespace {

// Fewer steps say little: one that lost its core for a time slice took as long as ten others.
constexpr double kLeastSeconds = 1;
// A thread that computes, or spins for the others, uses as much CPU time as passes.
constexpr double kManyTimes = 3;

double process_seconds() {
  timespec time{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

}  // namespace

std::string waits_for_cores(double wall, double cpu, int threads) {
  if (threads < 2 || wall < kLeastSeconds || !(cpu > 0) || wall <= kManyTimes * cpu) return {};
  return fmt::format(
      "fit: steps take {:.0f} times their CPU time ({:.2f} s for {:.2f} s): other programs have "
      "the "
      "cores, and the {} threads of the replica wait for each other; try one: "
      "`threads_per_replica` (--threads 1)",
      wall / cpu, wall, cpu, threads);
}

void CoreWatch::begin() {
  if (!looks()) return;
  if (cpu_begin_ < 0) cpu_begin_ = process_seconds();
  begin_ = Clock::now();
}

void CoreWatch::end() {
  if (!looks()) return;
  wall_ += std::chrono::duration<double>(Clock::now() - begin_).count();
  if (wall_ < kLeastSeconds) return;
  said_ = true;
  const std::string words = waits_for_cores(wall_, process_seconds() - cpu_begin_, threads_);
  if (!words.empty()) log(LogLevel::warning, "{}", words);
}

}  // namespace tutti::detail
