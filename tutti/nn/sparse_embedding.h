/// nn::SparseEmbedding: an embedding layer whose rows are made when their keys are first trained.
///
///   nn::SparseEmbedding user({.name = "user", .width = 32, .initializer = ps::NormalRows{}});
///   at::Tensor rows = user(keys);  // keys int64 [batch], any 64-bit keys; rows [batch, 32]
///
/// Use it where keys are many and rare: there is no size to choose, and a step reads and updates
/// only the rows that it looks up. Under strategy parameter_server the table is spread over the
/// servers, and may be larger than a worker; under one_device, mirrored and central_storage it is
/// in the process. The same program gives the same rows (sync/sparse_tables.h has the order of
/// sums). docs/guide/parameter_server.md, "Embedding tables".
#pragma once

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <memory>
#include <vector>

#include "tutti/ps/spec/sparse_spec.h"
#include "tutti/sync/sparse_tables.h"

namespace tutti::nn {

/// Layers of one name share a table. Rows belong to the optimizer (or compile()) that trains them:
/// it must be made before the first forward and live as long as rows are looked up, and a model
/// that was trained takes no second one. Rows are no parameters: Model::save and
/// weights_sha256 do not have them; checkpoints have those that are in this process, for fit() and
/// Model::load. Thread rule: that of a module.
class SparseEmbeddingImpl : public torch::nn::Module, public TableLayer {
 public:
  /// Throws UsageError as ps::SparseTableSpec::validate().
  explicit SparseEmbeddingImpl(ps::SparseTableSpec table);

  /// Rows of `keys`, as the steps so far have left them; of a key that was never trained, its
  /// initial row. Makes no row. With gradients enabled the look-up is part of the step: the next
  /// minimize() updates the rows of the keys whose output got a gradient, each once.
  ///
  /// keys  int64 of any shape, on the CPU; returns [..., width] of the table's dtype
  ///
  /// Throws UsageError for other keys, and before an optimizer was made; what the servers' client
  /// throws.
  at::Tensor forward(const at::Tensor& keys);

  const ps::SparseTableSpec& table() const override { return spec_; }
  void connect(const std::shared_ptr<SparseTables>& tables, int number) override;
  std::vector<RowGradients> take_gradients() override;
  void zero_gradients() override;
  void rows_restored() override { has_rows_ = true; }
  void pretty_print(std::ostream& stream) const override;

 private:
  struct LookUp {
    at::Tensor keys;
    at::Tensor rows;  // a leaf: gets the gradient
  };

  ps::SparseTableSpec spec_;
  std::weak_ptr<SparseTables> tables_;
  int number_ = 0;
  bool has_rows_ = false;         // maybe: looked up to be trained, or restored
  std::vector<LookUp> look_ups_;  // of this step
};

/// Holder, as torch::nn's modules have one.
class SparseEmbedding : public torch::nn::ModuleHolder<SparseEmbeddingImpl> {
 public:
  using torch::nn::ModuleHolder<SparseEmbeddingImpl>::ModuleHolder;
  explicit SparseEmbedding(ps::SparseTableSpec table)
      : ModuleHolder(std::make_shared<SparseEmbeddingImpl>(std::move(table))) {}
};

}  // namespace tutti::nn
