/// The clock by which limits are measured: steady, and it stands still while this process does.
///
/// A process that is stopped (SIGSTOP, a frozen cgroup, a virtual machine that is moved) finds all
/// its limits passed when it goes on, and would take its peers, who were stopped with it, for lost.
/// So a thread of the process beats; the clock goes no further than kLongestGap after the last
/// beat. Who is stopped alone is found by the others, whose clocks go on. (While a machine sleeps,
/// a steady clock of Linux stands still by itself.)
#pragma once

#include <chrono>

namespace tutti {

struct Clock {
  using duration = std::chrono::nanoseconds;
  using rep = duration::rep;
  using period = duration::period;
  using time_point = std::chrono::time_point<Clock>;
  static constexpr bool is_steady = true;

  /// Any thread. The first call starts the thread that beats, which takes no signals and no locks.
  static time_point now() noexcept;

  static constexpr std::chrono::milliseconds kBeat{100};
  /// Beats that are late for so long are a pause: of it the clock shows this much.
  static constexpr std::chrono::milliseconds kLongestGap{500};
};

}  // namespace tutti
