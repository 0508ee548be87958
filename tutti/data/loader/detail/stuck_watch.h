/// StuckWatch: ends the process when a replica that makes samples itself does not come back from
/// one. Others wait for a worker and have a deadline; a replica in a map that never returns waits
/// for nobody, and no thread can be freed from code that is not ours.
///
/// Thread rule: visits from any thread.
#pragma once

#include <condition_variable>
#include <list>
#include <memory>
#include <mutex>
#include <thread>

#include "tutti/base/deadline.h"
#include "tutti/data/detail/epoch_state.h"

namespace tutti::data::detail {

class StuckWatch {
 public:
  StuckWatch() = default;
  ~StuckWatch();
  StuckWatch(const StuckWatch&) = delete;
  StuckWatch& operator=(const StuckWatch&) = delete;

  /// As long as it lives, its thread makes samples of a batch. One that takes longer than
  /// `patience` in one stage is named on stderr, and the process ends with exit code 1.
  class Visit {
   public:
    Visit(StuckWatch& watch, std::shared_ptr<const EpochState> epoch, int64_t batch,
          Millis patience);
    ~Visit();
    Visit(const Visit&) = delete;
    Visit& operator=(const Visit&) = delete;
    Seen& seen() noexcept { return seen_; }

   private:
    friend class StuckWatch;
    bool moved();
    [[noreturn]] void give_up() const;

    StuckWatch& watch_;
    const std::shared_ptr<const EpochState> epoch_;
    const int64_t batch_;
    const Millis patience_;
    Seen seen_;
    // Of the watch: where it was at the last look, and since when.
    int64_t row_ = -1;
    const std::string* stage_ = nullptr;
    TimePoint since_ = Clock::now();
    std::list<Visit*>::iterator place_;
  };

 private:
  void watch();

  std::mutex mutex_;  // of all that follows
  std::condition_variable end_;
  std::list<Visit*> visits_;
  bool ending_ = false;
  std::thread thread_;  // since the first visit
};

}  // namespace tutti::data::detail
