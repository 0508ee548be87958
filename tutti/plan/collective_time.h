/// How long a collective takes, by a formula of its algorithm, and by a simulation of the very
/// schedule that the engine carries out (comm/schedule).
///
/// Model: every rank has one port out and one port in, each of the link's rate, both at once. A
/// message enters the port out when its round has begun and what stood before it in the schedule
/// has left; its first byte is there a latency later, and enters the port in behind what came
/// before. A round ends, for a rank, when its messages have left and those for it are there.
/// Computing costs nothing. (alpha, beta: Hockney 1994, doi:10.1016/S0167-8191(06)80021-9.) Where
/// several ranks are on a host, the two ports are the host's, and each rank has two more for what
/// goes to its neighbours.
///
/// Thread rule: pure functions.
#pragma once

#include <cstdint>

#include "tutti/comm/schedule/schedule.h"
#include "tutti/plan/link.h"

namespace tutti::plan {

struct CollectiveWork {
  Collective collective = Collective::all_reduce;
  Algorithm algorithm = Algorithm::ring;
  int ranks = 2;
  int64_t num_elements = 0;  ///< of the whole: the vector, or all parts together
  int64_t bytes_per_element = 4;
  int64_t chunk_elements = 1 << 16;  ///< > 0; what goes through the whole once a chunk has them
};

/// Ranks of one host follow one another, as many on each; what goes between them stays inside.
struct Neighbours {
  int ranks = 1;  ///< of a host, >= 1; divides all ranks
  Link inside{};  ///< between two of them
};

/// Seconds. `link`: of a host. Of all algorithms but those by trees that
/// follow a reduction shape (tree, double_tree), and barriers; with several ranks a host of
/// all_reduce by pairwise, doubling and halving_doubling. Exact where the ranks divide the
/// elements, and chunks the parts. Throws UsageError where there is no formula, and for ranks or
/// chunks that the algorithm cannot take.
double formula_seconds(const CollectiveWork& work, const Link& link,
                       const Neighbours& neighbours = {});

/// Seconds, of every schedule; tree as ReductionShape::hosts adds, from and to rank 0. Takes time
/// and memory in the order of ranks x rounds. Throws UsageError as comm's Schedule does.
double simulated_seconds(const CollectiveWork& work, const Link& link,
                         const Neighbours& neighbours = {});

/// The least that any algorithm sends: each rank 2 (n - 1) / n of the bytes, in one message each
/// way.
double least_seconds(int ranks, double bytes, const Link& link);

}  // namespace tutti::plan
