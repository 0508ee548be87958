/// The cross-entropy loss of logits that are cut into blocks along the vocabulary.
///
///   Blocks logits = head(x);                        // ColumnLinear of `vocabulary` units
///   loss = parallel::cross_entropy(tensor, logits, targets).mean();
///
/// -log softmax(logits)[target] of each row, without a tensor of all logits anywhere: ranks
/// exchange three numbers a row, the maximum (which does not depend on the order), then the sum of
/// exp(logit - maximum) and the target's logit, in the tree of all blocks. Shoeybi et al. 2019,
/// arXiv:1909.08053, section 3. The gradient, softmax(logits) - 1 at the target, needs no message.
/// Thread rule: the rank's own thread, forward and backward.
#pragma once

#include "tutti/parallel/tensor/tensor_functions.h"

namespace tutti::parallel {

/// Losses of the rows, the same bits on all ranks and for any number of ranks.
///
/// logits   [..., words of the block] each, as ColumnLinear gives them: float32, float64; bfloat16
///          and float16 are computed in float32. The vocabulary is what they are together.
/// targets  integers [...], 0 to vocabulary - 1, the same on all ranks
///
/// Gives [...], of float32 or float64, with gradients, though no second ones. A row with a NaN
/// gives NaN. Throws UsageError for other shapes and dtypes, DataError for a target that is no
/// word, what tensor_functions.h says.
at::Tensor cross_entropy(const TensorGroup& group, const Blocks& logits, const at::Tensor& targets);

}  // namespace tutti::parallel
