/// Share: which samples of a global batch are whose. Thread rule: pure functions.
#pragma once

#include <cstdint>
#include <span>

namespace tutti::data {

/// Samples [begin, end) of a global batch: what one replica trains on.
struct Share {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t size() const noexcept { return end - begin; }
  bool operator==(const Share&) const = default;
};

/// The share of replica `rank` in a global batch of `global_size` samples.
///
/// weights  relative speeds, one a replica, each finite, >= 0, not all 0; empty: all equal
///
/// Shares follow each other in rank order and cover the batch. What does not divide goes to the
/// largest remainders, lower ranks first: 13 over 5 gives 3, 3, 3, 2, 2. A share may be empty.
/// Throws UsageError for a rank or weights out of range.
Share share(int64_t global_size, int replicas, int rank, std::span<const double> weights = {});

}  // namespace tutti::data
