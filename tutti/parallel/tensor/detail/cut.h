/// What a layer that is cut computes, from weights that somebody else holds, and which pieces of
/// them a rank has. Not for users. Thread rule and errors: those of tensor_functions.h.
#pragma once

#include <string>
#include <vector>

#include "tutti/nn/dense.h"
#include "tutti/parallel/tensor/tensor_functions.h"
#include "tutti/sync/piece.h"

namespace tutti::parallel::detail {

/// UsageError for fewer elements than blocks.
void require_elements(const std::string& layer, int64_t elements, int blocks);
/// UsageError with the numbers that are possible.
void require_heads(const std::string& layer, int64_t heads, int blocks);

/// A rank's part of a parameter of shape `whole` along `axis`. UsageError as require_elements().
Piece piece_along(const TensorGroup& group, const std::string& layer, std::vector<int64_t> whole,
                  int64_t axis, int64_t stacked = 1);

/// y_b = x_b W_b' + b_b for each block of this rank.
///
/// weight, bias  this rank's of `units` rows, `stacked` equal parts one below the other, of which
///               each block has its rows; bias may be undefined
struct Columns {
  const at::Tensor& weight;
  const at::Tensor& bias;
  int64_t units = 0;
  int64_t stacked = 1;
};
Blocks column_products(const TensorGroup& group, const Blocks& copies, const Columns& columns,
                       nn::Activation activation = nn::Activation::none);

/// x_b W_b', which are to be summed; weight [out, this rank's of `features`].
Blocks row_products(const TensorGroup& group, const Blocks& blocks, const at::Tensor& weight,
                    int64_t features);
/// Their sum, and the bias once where there is one.
at::Tensor row_sum(const TensorGroup& group, const Blocks& products, const at::Tensor& bias);

/// Rows of a table; weight [this rank's of `vocabulary`, features]. DataError for a token that is
/// no word.
at::Tensor looked_up(const TensorGroup& group, const at::Tensor& tokens, const at::Tensor& weight,
                     int64_t vocabulary);

}  // namespace tutti::parallel::detail
