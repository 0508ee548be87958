/// Where to cut a row of layers into stages of a pipeline, so that the slowest stage is as fast as
/// it can be. Thread rule: pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

namespace tutti::parallel {

struct LayerCost {
  double seconds = 0;        ///< >= 0: of a microbatch, forward and backward
  int64_t bytes_out = 0;     ///< >= 0: of a microbatch, sent where a cut comes behind the layer
  int64_t bytes_memory = 0;  ///< >= 0: parameters, gradients, optimizer, what is kept for backward
};

struct LinkCost {
  double latency = 0;  ///< seconds a message, >= 0
  double seconds_per_byte = 0;
};

/// Stage s gets the layers from result[s] to result[s + 1], at least one; stages + 1 numbers.
/// The most seconds that a stage takes, its sending behind it included, are the least of all cuts
/// in which no stage takes more than `memory_limit` bytes; of equal ones the one that cuts
/// earliest, from the first cut on. Dynamic programming, stages x layers^2.
///
/// Throws UsageError for fewer layers than stages, and where no cut fits the memory: with the
/// stage that takes most when the most is the least possible.
std::vector<size_t> balanced(std::span<const LayerCost> layers, int stages, LinkCost link = {},
                             int64_t memory_limit = std::numeric_limits<int64_t>::max());

}  // namespace tutti::parallel
