/// In which order ranks that hold blocks add what the blocks give: always that of one tree over all
/// blocks. Pure. Not for users.
#pragma once

#include <vector>

#include "tutti/base/reduction_shape.h"

namespace tutti::parallel::detail {

/// The additions of ReductionShape::flat(blocks), dealt to the ranks.
struct BlockTree {
  using Step = ReductionShape::Step;  ///< of blocks

  std::vector<int> first_blocks;  ///< by rank; at the end the number of blocks
  std::vector<Step> own;          ///< what this rank adds by itself: whole subtrees
  std::vector<std::vector<int>>
      nodes;               ///< by rank: the first blocks of the subtrees that it has then
  std::vector<Step> rest;  ///< what is added to what then
  /// Each rank has one subtree, and a sum over the group adds these as `rest` says.
  bool by_group = false;
};

/// Of `rank`, in a group that adds as `ranks` says. Each rank has as many blocks, or the first ones
/// one more. blocks >= ranks.replicas().
BlockTree block_tree(int blocks, int rank, const ReductionShape& ranks);

}  // namespace tutti::parallel::detail
