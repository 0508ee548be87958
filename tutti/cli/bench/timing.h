/// Figures from the times of steps.
/// Thread rule: pure functions.
#pragma once

#include <chrono>
#include <vector>

#include "tutti/base/deadline.h"

namespace tutti::cli {

/// What a measurement endures: without a sign of the others; of its work in a program of its own.
inline constexpr Millis kMeasureLimit{120'000};
inline constexpr Millis kProgramLimit{10 * 60'000};

/// Milliseconds between two readings of the clock.
inline double ms_between(TimePoint from, TimePoint to) {
  return std::chrono::duration<double, std::milli>(to - from).count();
}

/// The value below which `fraction` (0 to 1) of the values lie, by linear interpolation; 0 for
/// none.
double quantile(std::vector<double> values, double fraction);

inline double median(std::vector<double> values) { return quantile(std::move(values), 0.5); }

}  // namespace tutti::cli
