/// Partial sums: what a worker may add by itself before it pushes, in the one order of summation.
///
/// Replicas of one worker that form a whole subtree of the reduction shape become one part; what
/// combines with other workers' replicas first stays apart. Thread rule: pure functions.
#pragma once

#include <vector>

#include "tutti/base/reduction_shape.h"

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

}  // namespace tutti::ps
