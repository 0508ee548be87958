#include "progress.h"

#include <algorithm>

#include "pace.h"

namespace tutti::python {
namespace {

using std::chrono::microseconds;

// After this long in callbacks the leader is replaced: longer than any callback that only computes
// on a few numbers, short beside a step.
constexpr microseconds kPatience{300};
// A callback that waits takes a thread out of play; as many may wait for one another.
constexpr size_t kMostThreads = 16;

}  // namespace

Progress& Progress::instance() {
  static Progress* const progress = std::make_unique<Progress>().release();
  return *progress;
}

void Progress::watch(const std::shared_ptr<Lane>& lane) {
  const std::lock_guard lock(mutex_);
  if (stopping_) return;
  if (std::find(lanes_.begin(), lanes_.end(), lane) == lanes_.end()) {
    lanes_.push_back(lane);
    ++changes_;
  }
  if (threads_.empty()) {
    add_thread();
    add_thread();
  }
  wake_leader_.notify_one();
  if (away_) wake_deputy_.notify_one();
}

void Progress::stop() {
  std::vector<std::thread> threads;
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    threads.swap(threads_);
  }
  wake_leader_.notify_all();
  wake_deputy_.notify_all();
  wake_spare_.notify_all();
  for (auto& thread : threads) thread.join();
}

void Progress::add_thread() {
  if (threads_.size() < kMostThreads) threads_.emplace_back([this] { run(); });
}

void Progress::find_deputy() {
  if (spares_ > 0)
    wake_spare_.notify_one();
  else
    add_thread();
}

void Progress::run() {
  const FineSleeps fine;
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    if (!leading_) {
      leading_ = true;
      lead(lock);
    } else if (!deputy_) {
      deputy_ = true;
      look_after_leader(lock);
      deputy_ = false;
    } else {
      ++spares_;
      wake_spare_.wait(lock);
      --spares_;
    }
  }
}

// Polls all lanes until replaced. Entered and left with the lock, as the leader and as nothing.
void Progress::lead(std::unique_lock<std::mutex>& lock) {
  std::vector<std::shared_ptr<Lane>> lanes;
  uint64_t seen = ~changes_;
  Pace pace;
  while (!stopping_) {
    forget_idle_lanes();
    if (lanes_.empty()) {
      lanes.clear();
      wake_leader_.wait(lock);
      pace.moved();
      continue;
    }
    if (seen != changes_) {
      lanes = lanes_;
      int ranks_here = 0;
      for (const auto& lane : lanes) ranks_here = std::max(ranks_here, lane->ranks_here());
      pace.among(ranks_here);
    }
    seen = changes_;
    lock.unlock();
    bool ended = false;
    for (const auto& lane : lanes) {
      if (lane->drivers.load(std::memory_order_relaxed) != 0) continue;
      lane->advance();
      ended |= lane->has_ended();
    }
    if (!ended) {
      pace.pause();
      lock.lock();
      continue;
    }
    lock.lock();
    const uint64_t departure = ++departures_;
    away_ = true;
    if (lanes_.size() > 1 || lanes_.front()->busy_with_several()) wake_deputy_.notify_one();
    lock.unlock();
    for (const auto& lane : lanes) lane->finish_ended();
    pace.moved();
    lock.lock();
    if (departure != departures_) return;  // replaced meanwhile
    away_ = false;
  }
  leading_ = false;
}

void Progress::look_after_leader(std::unique_lock<std::mutex>& lock) {
  while (!stopping_) {
    if (!away_) {
      wake_deputy_.wait(lock);
      continue;
    }
    const uint64_t departure = departures_;
    wake_deputy_.wait_for(lock, kPatience);
    if (stopping_ || !away_ || departure != departures_) continue;
    // The same callbacks still run: take over, and let another thread stand by.
    ++departures_;
    away_ = false;
    leading_ = false;
    find_deputy();
    return;
  }
}

void Progress::forget_idle_lanes() {
  const auto idle = [](const std::shared_ptr<Lane>& lane) {
    return !lane->busy() || lane->drivers.load(std::memory_order_relaxed) > 0;
  };
  changes_ += std::erase_if(lanes_, idle);
}

}  // namespace tutti::python
