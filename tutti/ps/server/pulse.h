/// Pulse: a thread that beats for another one, whose turns may take longer than the others' limit
/// of silence: a large push, the rows of a table that are put in order.
///
/// A thread that hangs must be found all the same: while a turn takes longer than any should,
/// nothing beats. It goes on when that turn ends after all.
/// Thread rule: one thread has the turns.
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "tutti/base/deadline.h"

namespace tutti::ps {

class Pulse {
 public:
  /// `beat` is called with `mutex` held, and says when it is to be called again. The thread that
  /// has the turns holds `mutex`, too, except while it does what takes long or waits.
  Pulse(std::mutex& mutex, Millis longest_turn, std::function<Millis()> beat);
  ~Pulse();
  Pulse(const Pulse&) = delete;

  /// With `mutex` held.
  void begin_turn(TimePoint now) { turn_began_ = now; }
  void end_turn();
  /// `beat` is to be called before it has said: what it goes by has changed. With `mutex` held.
  void wake();
  /// Whether a turn has taken too long, and nothing beats. With `mutex` held.
  bool hangs() const noexcept { return hangs_; }
  /// What `beat` has thrown, with which the pulse ended; "": nothing. With `mutex` held.
  const std::string& failure() const noexcept { return failure_; }

 private:
  void run();

  std::mutex& mutex_;  // guards all below but thread_
  const Millis longest_turn_;
  const std::function<Millis()> beat_;
  std::condition_variable changed_;
  std::optional<TimePoint> turn_began_;  // none: the other thread waits
  std::string failure_;
  bool hangs_ = false;
  bool woken_ = false;
  bool ends_ = false;
  std::thread thread_;
};

}  // namespace tutti::ps
