/// What `tutti bench all-reduce` measures: all_reduce beside a floor kernel, alternating, in one
/// run.
///
/// The *floor* is a plain loop with the same working set and sharing: each rank adds its slice of
/// all buffers and writes it to all, between two bare barriers. Data is produced and consumed by
/// its owner outside the timed part, so that transfers between cores are inside it. A sample is the
/// slowest rank's time; below 8 KiB it is the mean of a row of operations. Thread rule: each member
/// calls measure_all_reduce from its own thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tutti/comm/group.h"

namespace tutti::cli {

struct AllReduceBench {
  std::vector<int64_t> bytes = {8, 1 << 10, 64 << 10, 1 << 20, 16 << 20, 64 << 20};
  int rounds = 5;   ///< turns of all sizes, op and floor alternating in each
  bool pin = true;  ///< give each rank a core of its own when there are enough
};

struct AllReduceRow {
  std::string engine;
  int ranks = 1;
  int64_t bytes = 0;
  double p50_us = 0;
  double p99_us = 0;
  double bus_gb_s = 0;        ///< 2 (n-1)/n bytes / p50, in 1e9 bytes a second
  double floor_fraction = 0;  ///< p50 of the floor / p50
  bool correct = false;       ///< every element on every rank
  double floor_p50_us = 0;
  double flag_round_trip_ns =
      0;  ///< of a line between rank 0 and rank 1: shows the placement of cores

  /// One JSON object on one line, with "bench": "all-reduce".
  std::string to_json() const;
};

/// Collective over `group`, whatever its engine; one row for each of `bench.bytes` on every rank.
/// Throws UsageError for sizes that are negative or no multiple of 4.
std::vector<AllReduceRow> measure_all_reduce(Group group, const AllReduceBench& bench);

/// The same over `ranks` threads of this process.
std::vector<AllReduceRow> bench_all_reduce_threads(int ranks, const AllReduceBench& bench);

}  // namespace tutti::cli
