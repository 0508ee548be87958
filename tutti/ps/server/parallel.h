/// ParallelFor: a few threads that share the numbers of a loop with the thread that asks.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace tutti::ps {

/// Thread rule: one thread at a time.
class ParallelFor {
 public:
  /// `threads` in all, the caller's included; 1 or more.
  explicit ParallelFor(int threads);
  ~ParallelFor();
  ParallelFor(const ParallelFor&) = delete;

  /// fn(0) to fn(count - 1), once each. `fn` must not throw.
  void operator()(int64_t count, const std::function<void(int64_t)>& fn);

 private:
  void end() noexcept;
  void help();
  void work_off() noexcept;

  std::mutex mutex_;  // guards what follows up to threads_
  std::condition_variable changed_;
  int64_t round_ = 0;
  int busy_ = 0;  // threads that have joined the round
  bool ends_ = false;
  const std::function<void(int64_t)>* fn_ = nullptr;
  int64_t count_ = 0;
  std::atomic<int64_t> next_{0};
  std::vector<std::thread> threads_;
};

}  // namespace tutti::ps
