/// Dense layers in several blocks of one rank. Not for users. Thread rule and errors: those of
/// tensor_functions.h.
#pragma once

#include "tutti/nn/dense.h"
#include "tutti/parallel/tensor/detail/block_memory.h"

namespace tutti::parallel::detail {

/// y_b = activation(x_b W_b' + b_b) for each block.
///
/// xs      one a block, [..., features of W_b]
/// weight  of which `cut` says what W_b is
/// bias    of which `cut` says what b_b is; may be undefined
///
/// Each has the bits of nn::dense() of contiguous parts on 64-byte lines, and so have gradients.
/// Several blocks are one function of autograd: parts that are not memory of the weight are made
/// in one pass over it, and gradients are written to their places in the weight's.
Blocks block_products(const Blocks& xs, const at::Tensor& weight, const at::Tensor& bias,
                      const BlockCut& cut, nn::Activation activation = nn::Activation::none);

}  // namespace tutti::parallel::detail
