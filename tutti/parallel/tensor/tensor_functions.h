/// Functions between what is the same on all ranks and the blocks that each computes, seen through
/// by autograd.
///
///   auto x_of = parallel::copy_to(tensor, x);                 // one for each block of this rank
///   for (auto& x : x_of) x = at::gelu(up(x));                 // each block alone
///   auto y = parallel::sum_of(tensor, x_of);                  // the same on all ranks
///
/// A *whole* tensor is the same on each rank; *Blocks* are one tensor for each block of this rank,
/// in order. T stands for the number of all blocks.
///
/// function                 from    to      forward                       gradient
/// copy_to                  whole   Blocks  itself, to each block         their sum
/// sum_of                   Blocks  whole   sum over all blocks           itself, to each block
/// part_of                  whole   Blocks  each block's part             the parts joined
/// whole_of                 Blocks  whole   the parts joined              each block's part
/// sequence_all_gather      Blocks  Blocks  the parts joined, to each     part of their sum
/// sequence_reduce_scatter  Blocks  Blocks  part of the sum over all      the gradients joined
///
/// The first four are f, g and their likes of Megatron-LM (Shoeybi et al. 2019, arXiv:1909.08053,
/// section 3); the last two are g and its conjugate of sequence parallel (Korthikanti et al. 2022,
/// arXiv:2205.05198, section 4.2.2). **Which function is differentiated**: a loss that is whole is
/// one loss, however many ranks have it. Blocks that are a loss each stand for their sum. Backward
/// is made of these functions, so second derivatives work as well.
///
/// Sums are those of the tree of T blocks: the same bits for any number of ranks, as threads and as
/// processes. 16-bit types are added in float32 and rounded once. Any dense dtype that a Group
/// takes, where its engine reaches: the CPU. No input is changed; outputs of copy_to, part_of and
/// sequence_all_gather, and gradients, may share memory with each other and with inputs, so do not
/// write into them.
///
/// **What all ranks must do alike.** They call the same functions in the same order with the same
/// shapes, and their backward passes go through all of them or none: of copy_to, part_of and the
/// last two, a block of which the loss does not depend must say so, + 0 * y.sum(), else the others
/// wait for this rank until the time limit and name it. Each call costs one exchange of a few
/// hundred bytes, by which a disagreement (function, dtype, shape, axis, gradients) becomes a
/// Mismatch that names a rank, on every rank.
///
/// Throws UsageError for an undefined tensor, another number of blocks than
/// TensorGroup::local_blocks(), blocks of unlike shapes, an axis out of range, fewer elements along
/// it than blocks; Mismatch; PeerLost; Timeout. Thread rule: the rank's own thread, forward and
/// backward.
#pragma once

#include <torch/types.h>

#include <vector>

#include "tutti/parallel/tensor/tensor_group.h"

namespace tutti::parallel {

/// One tensor for each block of this rank, in order.
using Blocks = std::vector<at::Tensor>;

Blocks copy_to(const TensorGroup& group, const at::Tensor& x);

/// All blocks are of one shape.
at::Tensor sum_of(const TensorGroup& group, const Blocks& blocks);

/// x is cut along `axis` as TensorGroup::sizes() says; each part is contiguous. A negative axis
/// counts from the end.
Blocks part_of(const TensorGroup& group, const at::Tensor& x, int64_t axis = -1);

/// The blocks' sizes along `axis` are those of TensorGroup::sizes(), their other dimensions the
/// same.
at::Tensor whole_of(const TensorGroup& group, const Blocks& blocks, int64_t axis = -1);

/// From parts of the sequence, one a block, to all of it for each block. Sizes as of whole_of.
Blocks sequence_all_gather(const TensorGroup& group, const Blocks& parts, int64_t axis);

/// From what each block gives for the sequence to parts of the sum, one a block. Sizes as of
/// part_of.
Blocks sequence_reduce_scatter(const TensorGroup& group, const Blocks& blocks, int64_t axis);

}  // namespace tutti::parallel
