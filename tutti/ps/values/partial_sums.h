/// Partial sums: what a worker may add by itself before it pushes, in the one order of summation.
///
/// Replicas of one worker that form a whole subtree of the reduction shape become one part; what
/// combines with other workers' replicas first stays apart. Thread rule: pure functions.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "tutti/base/reduction_shape.h"
#include "tutti/ps/spec/spec.h"
#include "tutti/ps/wire/message.h"

namespace tutti::ps {

/// The replicas whose sum is a node of the tree, and the rank that stands for it.
struct PartialSum {
  int rank = 0;
  std::vector<int> ranks;  ///< ascending, `rank` among them
  bool operator==(const PartialSum&) const = default;
};

/// Of ranks [first, first + count), each in exactly one. Adding the partial sums in the order of
/// `shape`, with the other ranks left out, gives the bits of adding all.
std::vector<PartialSum> partial_sums(const ReductionShape& shape, int first, int count);

/// Where the gradient of a segment lies: of replica `rank`, or the sum for which it stands; null:
/// not used.
using Inputs = std::function<const void*(int rank, const Segment& segment)>;

/// Adds what `inputs` has of `piece` to `sums`, which are put one behind the other to `to`, each as
/// long as the piece. Returns their ranks, what was used and what is not finite: seen here, where
/// the sums are in the cache, so that a server need not read them once more.
std::vector<Part> add_parts(const ReductionShape& shape, const Piece& piece,
                            std::span<const PartialSum> sums, const Inputs& inputs, std::byte* to);

}  // namespace tutti::ps
