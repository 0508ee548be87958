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

  /// So many ranks on this host wait for each other, at most: where each has a core it spins.
  void among(int ranks_here);

  /// Between two looks: spins or yields at first, then sleeps, longer the longer nothing moves.
  void pause() const;

 private:
  bool spins_ = false;
  TimePoint last_move_ = Clock::now();
};

}  // namespace tutti::python
