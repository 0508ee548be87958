/// Pace: how a thread looks again and again without taking the core from who computes.
#pragma once

#include <chrono>

#include "tutti/base/deadline.h"

namespace tutti::python {

/// Lets this thread sleep for tens of microseconds while it lives: by default the kernel adds 50.
class FineSleeps {
 public:
  FineSleeps() noexcept;
  ~FineSleeps();
  FineSleeps(const FineSleeps&) = delete;
  FineSleeps& operator=(const FineSleeps&) = delete;

 private:
  unsigned long before_ns_;
};

/// Thread rule: one thread.
class Pace {
 public:
  /// Something came to its end: the next thing may be near.
  void moved() { last_move_ = Clock::now(); }

  /// Between two looks: nothing for the first 20 us, then sleeps, longer the longer nothing moves.
  void pause() const;

 private:
  TimePoint last_move_ = Clock::now();
};

}  // namespace tutti::python
