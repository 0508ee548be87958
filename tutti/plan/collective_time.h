/// How long an all-reduce takes, by a formula of its algorithm, and by a simulation of the very
/// schedule that the engine carries out (comm/schedule).
///
/// Model: every rank has one port out and one port in, each of the link's rate, both at once. A
/// message enters the port out when its round has begun and what stood before it in the schedule
/// has left; its first byte is there a latency later, and enters the port in behind what came
/// before. A round ends, for a rank, when its messages have left and those for it are there.
/// Computing costs nothing. (alpha, beta: Hockney 1994, doi:10.1016/S0167-8191(06)80021-9.)
///
/// Thread rule: pure functions.
#pragma once

#include <cstdint>

#include "tutti/comm/schedule/schedule.h"
#include "tutti/plan/link.h"

namespace tutti::plan {

struct AllReduce {
  Algorithm algorithm = Algorithm::ring;
  int ranks = 2;
  int64_t num_elements = 0;
  int64_t bytes_per_element = 4;
  int64_t chunk_elements = 1 << 16;  ///< > 0; ring and halving_doubling have none
};

/// Seconds. Of ring, halving_doubling, doubling, direct and pairwise; exact where the ranks divide
/// the elements, and chunks the parts. Throws UsageError for another algorithm, and for ranks or
/// chunks that it cannot take.
double formula_seconds(const AllReduce& work, const Link& link);

/// Seconds, of any algorithm for all-reduce; tree as ReductionShape::flat adds. Takes time
/// and memory in the order of ranks x rounds. Throws UsageError as comm's Schedule does.
double simulated_seconds(const AllReduce& work, const Link& link);

/// The least that any algorithm sends: each rank 2 (n - 1) / n of the bytes, in one message each
/// way.
double least_seconds(int ranks, double bytes, const Link& link);

}  // namespace tutti::plan
