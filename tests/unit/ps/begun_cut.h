/// A cut of a series that has got its folder.
#pragma once

#include <gtest/gtest.h>

#include <optional>

#include "tutti/ps/snapshot/snapshot_series.h"

namespace tutti::ps::testing {

inline constexpr Millis kPatience{30'000};

/// What is told of it; nothing: it has none.
inline std::optional<Message> begin_cut(SnapshotSeries& series, const View& view) {
  series.begin(view, Clock::now());
  EXPECT_TRUE(series.settle(Deadline(kPatience)));
  return series.process();
}

}  // namespace tutti::ps::testing
