/// Is a schedule one that can be carried out, and gives the bits of any other? Proven before work
/// starts, by its actions alone.
///
/// Each action once; in an order in which none waits for one that comes after it, however fast
/// ranks are; and in that of the microbatches, as gradients are added up and messages are sent.
/// Thread rule: pure functions.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tutti/mesh/schedule.h"

namespace tutti::mesh {

/// The first thing that is wrong: "rank 2, action 7 (B 0.3): comes before F 0.3, which it needs".
/// Unset: nothing. Rules, in this order:
///   - chunks and microbatches exist; W where backward is split, and only there;
///   - each F, B (and W) of each chunk and microbatch once, on each rank;
///   - of a chunk each kind in the order of microbatches: W and B add to one sum, and what a
///     neighbour sends first is taken first;
///   - on one rank F before B before W of the same;
///   - no circle of ranks that wait for each other's messages. Sends do not block: an executor has
///     its receives posted, in the sender's order, before it computes.
std::optional<std::string> fault_of(const Schedule& schedule);

/// Throws DataError with the schedule's name and its fault.
void check(const Schedule& schedule);

/// Of each rank, the most microbatches of a chunk that are kept at once: from F to the B that ends
/// it, to W where backward is split.
std::vector<int> peak_activations(const Schedule& schedule);

/// What has to be there before an action of `stage` begins, as actions of stages: F of the stage
/// before; for B its own F and B of the stage behind; for W its own B.
struct Needed {
  Kind kind = Kind::forward;
  int stage = 0;
};
std::vector<Needed> needs_of(const Schedule& schedule, Kind kind, int stage);

}  // namespace tutti::mesh
