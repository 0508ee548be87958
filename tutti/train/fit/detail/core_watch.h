/// CoreWatch: whether the threads of a lone replica get the cores that they were made for; not for
/// users. A thread that has no core lets all others of its replica wait, in every operator: on a
/// busy machine two threads can take five times as long as one.
#pragma once

#include <string>

#include "tutti/base/deadline.h"

namespace tutti::detail {

/// A warning with what to do, where computing took many times its CPU time; "" where it did not, or
/// it was too short to say. Pure.
///
/// wall, cpu  seconds: of forward, backward and update; of all threads of the process meanwhile
std::string waits_for_cores(double wall, double cpu, int threads);

/// Looks at the first second of computing, and warns at its end.
/// Thread rule: one thread at a time.
class CoreWatch {
 public:
  /// threads  of the replica, which computes alone; 1: there is nothing to look at
  explicit CoreWatch(int threads) : threads_(threads) {}

  void begin();
  void end();

 private:
  bool looks() const noexcept { return threads_ > 1 && !said_; }

  int threads_;
  bool said_ = false;
  double wall_ = 0;
  double cpu_begin_ = -1;  // of the process
  TimePoint begin_{};
};

}  // namespace tutti::detail
