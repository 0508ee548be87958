#include "tutti/parallel/tensor/layers.h"

#include <fmt/format.h>

#include <cmath>
#include <utility>

#include "tutti/base/error.h"
#include "tutti/parallel/tensor/detail/cut.h"

namespace tutti::parallel {
namespace {

Distribution uniform(double scale) { return {Distribution::Kind::uniform, scale}; }

/// Of torch::nn::Linear: kaiming_uniform of a = sqrt(5), and the same for the bias.
Distribution of_linear(int64_t in_features) {
  return uniform(1 / std::sqrt(static_cast<double>(in_features)));
}

}  // namespace

// ---- CutLayer ----

Piece CutLayer::all_of(std::vector<int64_t> shape) {
  const int64_t size = shape[0];
  return {.whole = std::move(shape), .size = size};
}

Piece CutLayer::cut(std::vector<int64_t> shape, int64_t axis, int64_t stacked) const {
  return detail::piece_along(group_, initial_.name, std::move(shape), axis, stacked);
}

at::Tensor CutLayer::add_piece(const std::string& name, const Piece& piece,
                               const Distribution& values) {
  const at::Tensor parameter = register_parameter(name, torch::empty(piece.shape()));
  fill_initial(parameter, piece, parameter_key(initial_.seed, initial_.name + "." + name), values);
  pieces_[name] = piece;
  return parameter;
}

void CutLayer::require_blocks(const Blocks& blocks) const {
  if (static_cast<int>(blocks.size()) != group_.local_blocks())
    throw UsageError(fmt::format("layer {}: got {} blocks, rank {} of {} has {}", initial_.name,
                                 blocks.size(), group_.rank(), group_.size(),
                                 group_.local_blocks()));
}

std::map<std::string, Piece> pieces_of(const torch::nn::Module& module) {
  std::map<std::string, Piece> all;
  const auto add = [&](const std::string& prefix, const torch::nn::Module& one) {
    const auto* layer = dynamic_cast<const CutLayer*>(&one);
    if (layer == nullptr) return;
    for (const auto& [name, piece] : layer->pieces()) all[prefix + name] = piece;
  };
  add("", module);
  for (const auto& child : module.named_modules("", /*include_self=*/false))
    add(child.key() + ".", *child.value());
  return all;
}

// ---- ColumnLinear ----

ColumnLinearImpl::ColumnLinearImpl(TensorGroup group, const torch::nn::LinearOptions& options,
                                   Initial initial)
    : CutLayer(std::move(group), std::move(initial)), units_(options.out_features()) {
  const auto values = of_linear(options.in_features());
  weight = add_piece("weight", cut({units_, options.in_features()}, 0), values);
  if (options.bias()) bias = add_piece("bias", cut({units_}, 0), values);
}

Blocks ColumnLinearImpl::of_copies(const Blocks& copies) {
  require_blocks(copies);
  return detail::column_products(group(), copies, {weight, bias, units_});
}

// ---- RowLinear ----

RowLinearImpl::RowLinearImpl(TensorGroup group, const torch::nn::LinearOptions& options,
                             Initial initial)
    : CutLayer(std::move(group), std::move(initial)), features_(options.in_features()) {
  const auto values = of_linear(features_);
  weight = add_piece("weight", cut({options.out_features(), features_}, 1), values);
  if (options.bias()) bias = add_piece("bias", all_of({options.out_features()}), values);
}

Blocks RowLinearImpl::products(const Blocks& blocks) const {
  require_blocks(blocks);
  return detail::row_products(group(), blocks, weight, features_);
}

at::Tensor RowLinearImpl::forward(const Blocks& blocks) {
  return detail::row_sum(group(), products(blocks), bias);
}

Blocks RowLinearImpl::forward_sequence(const Blocks& blocks, int64_t axis) {
  Blocks parts = sequence_reduce_scatter(group(), products(blocks), axis);
  if (!bias.defined()) return parts;
  const Blocks biases = copy_to(group(), bias);  // each part adds to its gradient
  for (size_t block = 0; block < parts.size(); ++block) parts[block] = parts[block] + biases[block];
  return parts;
}

// ---- Embedding ----

EmbeddingImpl::EmbeddingImpl(TensorGroup group, int64_t vocabulary, int64_t features,
                             Initial initial)
    : CutLayer(std::move(group), std::move(initial)), vocabulary_(vocabulary) {
  weight = add_piece("weight", cut({vocabulary, features}, 0), {Distribution::Kind::normal, 1});
}

at::Tensor EmbeddingImpl::forward(const at::Tensor& tokens) {
  return detail::looked_up(group(), tokens, weight, vocabulary_);
}

}  // namespace tutti::parallel
