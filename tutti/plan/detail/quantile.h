/// The middle of measured times, and how far they lie apart. Thread rule: pure functions.
#pragma once

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

namespace tutti::plan::detail {

/// Between 0 and 1, straight between the values in order. values: one or more.
inline double quantile_of(std::vector<double> values, double fraction) {
  std::ranges::sort(values);
  const double place = fraction * static_cast<double>(values.size() - 1);
  const auto low = static_cast<size_t>(place);
  const size_t high = std::min(low + 1, values.size() - 1);
  return values[low] + (place - static_cast<double>(low)) * (values[high] - values[low]);
}

inline double median_of(std::vector<double> values) { return quantile_of(std::move(values), 0.5); }

/// Of the middle half, over the median.
inline double spread_of(const std::vector<double>& values) {
  return (quantile_of(values, 0.75) - quantile_of(values, 0.25)) / median_of(values);
}

}  // namespace tutti::plan::detail
