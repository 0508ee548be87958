#include "tutti/parallel/tensor/detail/cut.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <utility>

#include "tutti/base/error.h"
#include "tutti/parallel/tensor/detail/block_products.h"
#include "tutti/parallel/tensor/detail/tokens.h"
#include "tutti/parallel/tensor/detail/tree_sum.h"

namespace tutti::parallel::detail {

void require_elements(const std::string& layer, int64_t elements, int blocks) {
  if (elements < blocks)
    throw UsageError(fmt::format("layer {}: {} elements on {} blocks; expected one a block or more",
                                 layer, elements, blocks));
}

void require_heads(const std::string& layer, int64_t heads, int blocks) {
  if (heads % blocks == 0) return;
  std::vector<int64_t> possible;
  for (int64_t n = 1; n <= heads; ++n)
    if (heads % n == 0) possible.push_back(n);
  throw UsageError(fmt::format("layer {}: {} heads on tensor = {} (possible: {})", layer, heads,
                               blocks, fmt::join(possible, ", ")));
}

Piece piece_along(const TensorGroup& group, const std::string& layer, std::vector<int64_t> whole,
                  int64_t axis, int64_t stacked) {
  const int64_t length = whole[static_cast<size_t>(axis)] / stacked;
  require_elements(layer, length, group.blocks());
  const auto [begin, size] = group.range(length);
  return {
      .whole = std::move(whole), .axis = axis, .begin = begin, .size = size, .stacked = stacked};
}

Blocks column_products(const TensorGroup& group, const Blocks& copies, const Columns& columns,
                       nn::Activation activation) {
  return block_products(copies, columns.weight, columns.bias,
                        {.sizes = group.sizes_of(group.rank(), columns.units / columns.stacked),
                         .stacked = columns.stacked},
                        activation);
}

Blocks row_products(const TensorGroup& group, const Blocks& blocks, const at::Tensor& weight,
                    int64_t features) {
  return block_products(blocks, weight, {},
                        {.sizes = group.sizes_of(group.rank(), features), .axis = 1});
}

at::Tensor row_sum(const TensorGroup& group, const Blocks& products, const at::Tensor& bias) {
  const at::Tensor sum = sum_of(group, products);
  return bias.defined() ? sum + bias : sum;
}

at::Tensor looked_up(const TensorGroup& group, const at::Tensor& tokens, const at::Tensor& weight,
                     int64_t vocabulary) {
  require_tokens("embedding in blocks", tokens, vocabulary);
  int64_t begin = group.range(vocabulary).begin;
  Blocks rows;
  for (const at::Tensor& words :
       aligned_parts(weight, group.sizes_of(group.rank(), vocabulary), 0)) {
    const auto [place, outside] = places_in(tokens, begin, words.size(0));
    rows.push_back(at::embedding(words, place).masked_fill(outside.unsqueeze(-1), 0));
    begin += words.size(0);
  }
  return sum_of(group, rows);
}

}  // namespace tutti::parallel::detail
