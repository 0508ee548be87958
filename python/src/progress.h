/// Progress: the thread that moves calls for which nobody waits.
///
/// Users of futures (DDP above all) wait on a condition variable of LibTorch's and never enter our
/// code, so somebody else has to poll the engines. One thread a process does so for all groups. It
/// polls for a short while, then sleeps tens of microseconds between looks, and sleeps on a
/// condition variable while nothing is in flight or while waiting threads poll for themselves.
///
/// When a callback of the program keeps it (a hook may wait for the future of a second operation),
/// a deputy takes its place, so a callback may wait for anything.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "lane.h"

namespace tutti::python {

/// Thread rule: every function may be called from any thread.
class Progress {
 public:
  /// The one of this process. Never destroyed: a program may end with operations open.
  static Progress& instance();

  /// Has `lane` polled until it is idle or somebody drives it.
  void watch(const std::shared_ptr<Lane>& lane);

  /// Ends the threads; operations move in their waiters from then on. When the program ends.
  void stop();

 private:
  void run();
  void lead(std::unique_lock<std::mutex>& lock);
  void forget_idle_lanes();
  void add_thread();
  void find_deputy();
  void look_after_leader(std::unique_lock<std::mutex>& lock);

  std::mutex mutex_;
  std::condition_variable wake_leader_;
  std::condition_variable wake_deputy_;
  std::condition_variable wake_spare_;
  std::vector<std::shared_ptr<Lane>> lanes_;  // below: guarded by mutex_
  std::vector<std::thread> threads_;
  uint64_t changes_ = 0;     // of lanes_
  uint64_t departures_ = 0;  // of leaders into callbacks
  bool leading_ = false;     // a thread polls, or waits for lanes
  bool away_ = false;        // it is in callbacks
  bool deputy_ = false;      // a thread stands by
  int spares_ = 0;           // threads that came back from callbacks to find both places taken
  bool stopping_ = false;
};

}  // namespace tutti::python
