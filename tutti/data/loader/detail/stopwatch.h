/// What some rows cost the thread that computes them.
#pragma once

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdint>
#include <string_view>

#include "tutti/base/deadline.h"

namespace tutti::data::detail {

/// In seconds. Time that a thread was made to wait for a core is in `wall` alone.
struct Cost {
  int64_t rows = 0;
  double wall = 0;
  double compute = 0;  ///< of a core
  double blocked = 0;  ///< asleep inside of stages
  double reading = 0;  ///< asleep in reads of sources

  void add(const Cost& other) {
    rows += other.rows;
    wall += other.wall;
    compute += other.compute;
    blocked += other.blocked;
    reading += other.reading;
  }
};

/// How long this thread was ready and had no core.
class Delay {
 public:
  /// In seconds; 0 where Linux does not tell.
  static double of_this_thread() {
    thread_local const Delay kDelay;
    char text[64];
    const ssize_t size = ::pread(kDelay.file_, text, sizeof text, 0);
    const std::string_view words(text, static_cast<size_t>(std::max<ssize_t>(0, size)));
    const size_t second = std::min(words.find(' ') + 1, words.size());  // computed, delayed, times
    int64_t nanoseconds = 0;
    std::from_chars(words.data() + second, words.data() + words.size(), nanoseconds);
    return 1e-9 * static_cast<double>(nanoseconds);
  }
  Delay(const Delay&) = delete;
  Delay& operator=(const Delay&) = delete;

 private:
  Delay() = default;
  ~Delay() { ::close(file_); }

  int file_ = ::open("/proc/thread-self/schedstat", O_RDONLY | O_CLOEXEC);
};

/// Of the thread that made it. Making and reading take some microseconds.
class Stopwatch {
 public:
  /// `left`: seconds that were spent in reads; `waited`: for others of the loader, which count for
  /// nothing.
  Cost cost_of(int64_t rows, double left, double waited = 0) const {
    const Use now = use();
    const double wall = std::chrono::duration<double>(Clock::now() - begin_).count() - waited;
    const double compute = now.compute - before_.compute;
    const double delay = now.delay - before_.delay;
    const double asleep = now.slept == before_.slept ? 0 : std::max(0.0, wall - compute - delay);
    const double reading = std::min(asleep, left);
    return {.rows = rows,
            .wall = wall,
            .compute = compute,
            .blocked = asleep - reading,
            .reading = reading};
  }

 private:
  struct Use {
    double compute = 0;
    double delay = 0;
    int64_t slept = 0;  // times
  };
  static Use use() {
    struct rusage all{};
    ::getrusage(RUSAGE_THREAD, &all);
    const auto seconds = [](const timeval& time) {
      return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
    };
    return {.compute = seconds(all.ru_utime) + seconds(all.ru_stime),
            .delay = Delay::of_this_thread(),
            .slept = all.ru_nvcsw};
  }

  const Use before_ = use();
  const TimePoint begin_ = Clock::now();
};

}  // namespace tutti::data::detail
