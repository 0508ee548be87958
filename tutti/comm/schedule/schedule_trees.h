/// The trees along which schedules add: that of a reduction shape, and the two of Sanders, Speck
/// and Traeff, "Two-tree algorithms for full bandwidth broadcast, reduction and scan", 2009.
/// Thread rule: pure functions and constants.
#pragma once

#include <vector>

#include "tutti/base/reduction_shape.h"

namespace tutti {

/// One rank's additions in the tree of a ReductionShape, as exchanges of partial sums.
struct ShapeTree {
  struct Exchange {
    int round = 0;
    int peer = 0;
    bool sends = false;  ///< to `peer`; else receives from it and adds
    bool last = false;   ///< rank 0: the sum is then complete
  };
  ShapeTree(const ReductionShape& shape, int rank);

  std::vector<Exchange> exchanges;  ///< in the order of rounds
  int rounds = 0;                   ///< of the whole tree
};

/// True when both shapes add in the same order: {2, 2} and {4}, but not {3, 3} and {6}.
bool same_tree(const ReductionShape& a, const ReductionShape& b);

/// A rank's place in one of the two trees: inner in at most one of them.
struct TreePlace {
  int parent = -1;  ///< -1: the root
  int left = -1;
  int right = -1;
  int level = 0;         ///< 0: a leaf; below its parent's
  int parent_level = 0;  ///< of the parent
  bool is_left = false;  ///< of its parent's children
};

/// The place of `rank` of `size` in tree 0 or 1.
TreePlace double_tree_place(int tree, int rank, int size);

/// The level of the root: the number of rounds from a leaf to it.
int double_tree_height(int size);

}  // namespace tutti
