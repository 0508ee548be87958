/// What some rows cost the thread that computes them.
#pragma once

#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cstdint>

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

/// Of the thread that made it. Making and reading take about a microsecond.
class Stopwatch {
 public:
  /// `left`: seconds that were spent in reads.
  Cost cost_of(int64_t rows, double left) const {
    const Use now = use();
    const double wall = std::chrono::duration<double>(Clock::now() - begin_).count();
    const double compute = now.compute - before_.compute;
    const double asleep = now.slept == before_.slept ? 0 : std::max(0.0, wall - compute);
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
    int64_t slept = 0;  // times
  };
  static Use use() {
    struct rusage all{};
    ::getrusage(RUSAGE_THREAD, &all);
    const auto seconds = [](const timeval& time) {
      return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
    };
    return {.compute = seconds(all.ru_utime) + seconds(all.ru_stime), .slept = all.ru_nvcsw};
  }

  const Use before_ = use();
  const TimePoint begin_ = Clock::now();
};

}  // namespace tutti::data::detail
