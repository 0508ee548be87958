/// Sums, and parts put together, over the blocks of a TensorGroup, without autograd. Not for users.
/// Collective; all ranks' arguments are known to agree.
#pragma once

#include "tutti/parallel/tensor/tensor_functions.h"

namespace tutti::parallel::detail {

/// The sum over all blocks, in the order of their tree. New memory.
at::Tensor tree_sum(const TensorGroup& group, const Blocks& blocks);

/// Of that sum this rank's parts along `axis`, one a block.
Blocks tree_sum_parts(const TensorGroup& group, const Blocks& blocks, int64_t axis);

/// The parts of all blocks along `axis`, together `length`. New memory, contiguous.
at::Tensor joined(const TensorGroup& group, const Blocks& parts, int64_t axis, int64_t length);

/// Parts of `x` along `axis`, `sizes` each, as a matrix kernel gets the same bits from them
/// wherever they are cut: contiguous, and on a 64-byte line. By operations that autograd sees
/// through.
Blocks aligned_parts(const at::Tensor& x, const std::vector<int64_t>& sizes, int64_t axis);

}  // namespace tutti::parallel::detail
