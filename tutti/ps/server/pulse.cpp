#include "tutti/ps/server/pulse.h"

#include <algorithm>
#include <utility>

#include "tutti/base/threads.h"

namespace tutti::ps {

Pulse::Pulse(std::mutex& mutex, Millis longest_turn, std::function<Millis()> beat)
    : mutex_(mutex),
      longest_turn_(longest_turn),
      beat_(std::move(beat)),
      thread_(start_thread("the pulse of a server", [this] { run(); })) {}

Pulse::~Pulse() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void Pulse::end_turn() {
  turn_began_.reset();
  if (hangs_) changed_.notify_all();  // else it comes when it has said: turns are many
}

void Pulse::wake() {
  woken_ = true;
  changed_.notify_all();
}

void Pulse::run() {
  std::unique_lock lock(mutex_);
  try {
    while (!ends_) {
      const std::optional<TimePoint> turn = turn_began_;
      hangs_ = turn && Clock::now() - *turn >= longest_turn_;
      if (hangs_) {
        // The next one may have begun by the time that this thread looks.
        changed_.wait(lock, [&] { return ends_ || turn_began_ != turn; });
        continue;
      }
      woken_ = false;
      const Millis next = beat_();
      changed_.wait_for(lock, std::max(Millis{1}, next), [&] { return ends_ || woken_; });
    }
  } catch (const std::exception& error) {
    failure_ = error.what();
  }
}

}  // namespace tutti::ps
