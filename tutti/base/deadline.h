/// A point in time after which a wait must give up. Made once at the top and handed down.
#pragma once

#include <algorithm>
#include <chrono>

#include "tutti/base/clock.h"

namespace tutti {

using Millis = std::chrono::milliseconds;
using TimePoint = Clock::time_point;

/// Default time limit of every collective wait.
constexpr Millis kDefaultTimeLimit{30'000};

/// A longer limit counts as this one: Millis::max() from now would lie in the past.
constexpr Millis kLongestLimit = std::chrono::hours(10 * 365 * 24);

/// The point in time `limit` from now; now itself for a negative limit.
inline TimePoint time_after(Millis limit) {
  return Clock::now() + std::clamp(limit, Millis{0}, kLongestLimit);
}

class Deadline {
 public:
  explicit Deadline(Millis limit) : limit_(limit), at_(time_after(limit)) {}

  bool passed() const { return Clock::now() >= at_; }

  /// Time left, never negative, rounded up: ready for poll(2).
  Millis left() const { return std::max(Millis{0}, std::chrono::ceil<Millis>(at_ - Clock::now())); }

  Millis limit() const { return limit_; }  ///< what it was made with, for messages
  TimePoint at() const { return at_; }

 private:
  Millis limit_;
  TimePoint at_;
};

}  // namespace tutti
