/// Takes pauses out of a steady time. No clock of its own; times are in nanoseconds.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <limits>

namespace tutti::detail {

class PauseMeter {
 public:
  explicit constexpr PauseMeter(int64_t longest_gap) noexcept : longest_gap_(longest_gap) {}

  /// The time without pauses; any thread. `now` is asked after the last beat has been looked at: a
  /// pause in between is then beyond what that beat allows.
  template <class Now>
  int64_t read(Now&& now) const noexcept {
    const int64_t most = most_.load(std::memory_order_acquire);
    const int64_t paused = paused_.load(std::memory_order_relaxed);
    return std::min(now() - paused, most);
  }

  /// One thread. What has passed since the last beat beyond the longest gap was a pause.
  void beat(int64_t now) noexcept {
    const int64_t paused = std::max(paused_.load(std::memory_order_relaxed),
                                    now - most_.load(std::memory_order_relaxed));
    paused_.store(paused, std::memory_order_relaxed);
    most_.store(now - paused + longest_gap_, std::memory_order_release);
  }

  /// No beat comes any more: the time is the steady one, but for the pauses so far.
  void end() noexcept { most_.store(kNoLimit, std::memory_order_release); }

  int64_t paused() const noexcept { return paused_.load(std::memory_order_relaxed); }

 private:
  static constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();
  const int64_t longest_gap_;
  std::atomic<int64_t> paused_{0};
  std::atomic<int64_t> most_{kNoLimit};  // that may be shown until the next beat
};

/// What Clock has left out so far: steady_clock is so far ahead of it. Any thread.
std::chrono::nanoseconds paused_so_far() noexcept;

}  // namespace tutti::detail
