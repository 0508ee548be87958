/// What a state keeps of LocalUpdates, so that a training goes on as it was. Not for users.
/// Without LibTorch. Thread rule: pure functions.
#pragma once

#include <array>
#include <cstddef>

#include "tutti/base/error.h"
#include "tutti/sync/local_options.h"

namespace tutti::detail {

using LocalNumbers = std::array<double, 5>;

/// All of them are exact: counts are below 2^53.
inline LocalNumbers numbers_of(const LocalUpdates& local) {
  const auto& [every, outer, start_step] = local;
  const auto& [learning_rate, momentum, nesterov] = outer;
  return {static_cast<double>(every), static_cast<double>(start_step), learning_rate, momentum,
          nesterov ? 1.0 : 0.0};
}

/// UsageError naming the first option that is another than `then`: replicas are in the middle of a
/// round, and the outer step has a momentum, by these.
inline void require_same_local(const LocalNumbers& then, const LocalUpdates& here) {
  constexpr const char* kNames[] = {"every (--local-steps)", "start_step (--local-start)",
                                    "outer.learning_rate (--outer-learning-rate)",
                                    "outer.momentum (--outer-momentum)",
                                    "outer.nesterov (--outer-nesterov)"};
  const LocalNumbers now = numbers_of(here);
  for (size_t i = 0; i < now.size(); ++i)
    if (now[i] != then[i])
      throw UsageError(
          fmt::format("local updates: {} was {}, and here it is {}; go on with what it was, or "
                      "begin anew with their weights (--from)",
                      kNames[i], then[i], now[i]));
}

}  // namespace tutti::detail
