/// Layers that are cut into blocks: columns and rows of a dense layer, words of an embedding.
///
///   parallel::ColumnLinear up(tensor, {64, 256}, {.seed = 1, .name = "up"});
///   parallel::RowLinear down(tensor, {256, 64}, {.seed = 1, .name = "down"});
///   auto blocks = up(x);                       // no message: each has columns of the whole output
///   for (auto& h : blocks) h = at::gelu(h);    // each block alone
///   y = down(blocks);                          // one sum over the blocks
///
/// Parameters have the names of torch::nn::Linear and torch::nn::Embedding, and the shapes that
/// their layers of a rank's columns, rows or words would have; on one rank that is the whole.
/// Initial values have torch's distributions, drawn by (seed, name, element): the same whatever the
/// ranks.
///
/// Products are those of nn::dense, a block each: the same bits for any number of ranks, where all
/// ranks compute with the same number of threads and the same dense kernel. Where a rank has
/// several blocks, what is not on a 64-byte line, and rows' columns, are copied in forward and kept
/// for backward, since products depend on that.
///
/// Layers throw what tensor_functions.h says, and what torch throws for shapes that do not fit.
/// Thread rule: that of a torch module; forward and backward by the rank's own thread.
#pragma once

#include <torch/nn/module.h>
#include <torch/nn/options/linear.h>
#include <torch/nn/pimpl.h>

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tutti/parallel/tensor/piece.h"
#include "tutti/parallel/tensor/tensor_functions.h"

namespace tutti::parallel {

/// What a layer's initial values are drawn by.
struct Initial {
  uint64_t seed = 0;
  std::string name{};  ///< of the layer in the whole model, of which no other has the same

  /// Of a layer in this one.
  Initial of(const std::string& child) const { return {seed, name + "." + child}; }
};

/// Base of the layers: a module that knows which pieces of parameters it has.
class CutLayer : public torch::nn::Module {
 public:
  const TensorGroup& group() const noexcept { return group_; }
  /// By the parameter's name in this layer, without those of modules in it.
  const std::map<std::string, Piece>& pieces() const noexcept { return pieces_; }

 protected:
  CutLayer(TensorGroup group, Initial initial)
      : group_(std::move(group)), initial_(std::move(initial)) {}

  const Initial& initial() const noexcept { return initial_; }
  /// All of a parameter of this shape.
  static Piece all_of(std::vector<int64_t> shape);
  /// This rank's part along `axis`. UsageError where there are fewer elements than blocks.
  Piece cut(std::vector<int64_t> shape, int64_t axis, int64_t stacked = 1) const;
  at::Tensor add_piece(const std::string& name, const Piece& piece, const Distribution& values);
  /// UsageError unless there is one tensor for each block of this rank.
  void require_blocks(const Blocks& blocks) const;

 private:
  TensorGroup group_;
  Initial initial_;
  std::map<std::string, Piece> pieces_;
};

/// Pieces by the names of named_parameters(), of the layers of this kind in a module.
std::map<std::string, Piece> pieces_of(const torch::nn::Module& module);

/// Columns of y = x W' + b: each block has some of the units.
class ColumnLinearImpl : public CutLayer {
 public:
  ColumnLinearImpl(TensorGroup group, const torch::nn::LinearOptions& options, Initial initial);

  /// x: [..., in_features], the same on all ranks. Gives [..., units of the block] each.
  Blocks forward(const at::Tensor& x) { return of_copies(copy_to(group(), x)); }
  /// The same of what copy_to or sequence_all_gather gave.
  Blocks of_copies(const Blocks& copies);

  at::Tensor weight;  ///< [this rank's units, in_features]
  at::Tensor bias;    ///< [this rank's units]; undefined without one
 private:
  int64_t units_;
};
/// Holder, as torch::nn's modules have one.
class ColumnLinear : public torch::nn::ModuleHolder<ColumnLinearImpl> {
 public:
  using torch::nn::ModuleHolder<ColumnLinearImpl>::ModuleHolder;
  ColumnLinear(const TensorGroup& group, const torch::nn::LinearOptions& options,
               const Initial& initial)
      : ModuleHolder(std::make_shared<ColumnLinearImpl>(group, options, initial)) {}
};

/// Rows of y = x W' + b: each block has some of the features of x. The bias, whole on each rank, is
/// added once, after the sum.
class RowLinearImpl : public CutLayer {
 public:
  RowLinearImpl(TensorGroup group, const torch::nn::LinearOptions& options, Initial initial);

  /// blocks: [..., features of the block] each, as ColumnLinear or part_of(x) gives them. Gives
  /// [..., out_features], the same on all ranks.
  at::Tensor forward(const Blocks& blocks);
  /// For sequence parallel: gives parts along `axis` of the sum with the bias, one a block.
  Blocks forward_sequence(const Blocks& blocks, int64_t axis);

  at::Tensor weight;  ///< [out_features, this rank's features]
  at::Tensor bias;    ///< [out_features]; undefined without one
 private:
  Blocks products(const Blocks& blocks) const;
  int64_t features_;
};
/// Holder, as torch::nn's modules have one.
class RowLinear : public torch::nn::ModuleHolder<RowLinearImpl> {
 public:
  using torch::nn::ModuleHolder<RowLinearImpl>::ModuleHolder;
  RowLinear(const TensorGroup& group, const torch::nn::LinearOptions& options,
            const Initial& initial)
      : ModuleHolder(std::make_shared<RowLinearImpl>(group, options, initial)) {}
};

/// Rows of a table: each block has some of the words.
class EmbeddingImpl : public CutLayer {
 public:
  /// UsageError unless blocks <= vocabulary and 1 <= features.
  EmbeddingImpl(TensorGroup group, int64_t vocabulary, int64_t features, Initial initial);

  /// tokens: int64 or int32 of any shape, the same on all ranks. Gives [..., features], the same on
  /// all ranks. DataError for a token that is no word.
  at::Tensor forward(const at::Tensor& tokens);

  at::Tensor weight;  ///< [this rank's words, features]
 private:
  int64_t vocabulary_;
};
/// Holder, as torch::nn's modules have one.
class Embedding : public torch::nn::ModuleHolder<EmbeddingImpl> {
 public:
  using torch::nn::ModuleHolder<EmbeddingImpl>::ModuleHolder;
  Embedding(const TensorGroup& group, int64_t vocabulary, int64_t features, const Initial& initial)
      : ModuleHolder(std::make_shared<EmbeddingImpl>(group, vocabulary, features, initial)) {}
};

}  // namespace tutti::parallel
