/// StepWatch: how long one replica computes a row. Not for users.
///
/// Thread rule: the replica's thread in run(), the strategy's between runs.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <utility>
#include <vector>

#include "tutti/base/deadline.h"
#include "tutti/strategy/run/shares_by_speed.h"

namespace tutti::detail {

class StepWatch {
 public:
  void turn_on() noexcept { on_ = true; }
  bool on() const noexcept { return on_; }

  /// The part of a batch is there: `rows` of `batch`. One that was begun and never ended (of an
  /// evaluation, say) counts for nothing.
  void begin(int64_t rows, int64_t batch) {
    rows_ = rows;
    batch_ = batch;
    begun_ = Clock::now();
  }
  /// Its backward pass is over, and the others are still to be waited for.
  void end() {
    if (rows_ == 0) return;
    const std::chrono::duration<double> time = Clock::now() - begun_;
    seconds_a_row_.push_back(time.count() / static_cast<double>(rows_));
    largest_batch_ = std::max(largest_batch_, batch_);
    rows_ = 0;
  }
  /// What was measured, which is then forgotten.
  RowTimes take() {
    return row_times(std::exchange(seconds_a_row_, {}), std::exchange(largest_batch_, 0));
  }

 private:
  bool on_ = false;
  int64_t rows_ = 0;  // 0: nothing is measured
  int64_t batch_ = 0;
  int64_t largest_batch_ = 0;
  TimePoint begun_{};
  std::vector<double> seconds_a_row_;
};

}  // namespace tutti::detail
