/// Pauses between tries to reach somebody. For net's own sources.
/// Thread rule: one thread.
#pragma once

#include <algorithm>
#include <thread>

#include "tutti/base/deadline.h"

namespace tutti::detail {

/// For somebody who closes every connection without a word, 1.3 s: a burst of connections is over
/// then, and what will never answer is told soon.
inline constexpr int kTriesWithoutAWord = 8;

/// 10 ms, 20 ms, ... 1 s: 7 in the first 1.3 seconds, then one a second.
class Pauses {
 public:
  /// Sleeps for the next one, at most until the deadline; false, at once, when that has passed.
  bool wait(const Deadline& deadline) {
    const Millis left = deadline.left();
    if (left <= Millis{0}) return false;
    std::this_thread::sleep_for(std::min(next_, left));
    next_ = std::min(2 * next_, kLongest);
    return true;
  }

 private:
  static constexpr Millis kLongest{1'000};
  Millis next_{10};
};

}  // namespace tutti::detail
