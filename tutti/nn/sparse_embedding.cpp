#include "tutti/nn/sparse_embedding.h"

#include <fmt/format.h>
#include <torch/types.h>

#include <ostream>

#include "tutti/base/error.h"
#include "tutti/nn/detail/by_host.h"
#include "tutti/queues/host_copies.h"
#include "tutti/strategy/replica_context.h"
#include "tutti/sync/tensors.h"

namespace tutti::nn {
namespace {

std::span<const uint64_t> keys_in(const at::Tensor& keys) {
  return {reinterpret_cast<const uint64_t*>(keys.data_ptr<int64_t>()),
          static_cast<size_t>(keys.numel())};
}

// A forward pass outside of run() is of nobody who could be waited for otherwise.
Millis limit_here() {
  const ReplicaContext* const replica = ReplicaContext::current();
  return replica != nullptr ? replica->time_limit() : kDefaultTimeLimit;
}

}  // namespace

SparseEmbeddingImpl::SparseEmbeddingImpl(ps::SparseTableSpec table) : spec_(std::move(table)) {
  spec_.validate();
}

at::Tensor SparseEmbeddingImpl::forward(const at::Tensor& keys) {
  if (!keys.defined() || keys.scalar_type() != at::kLong)
    throw UsageError(
        fmt::format("embedding table \"{}\": keys are {}; expected int64", spec_.name,
                    keys.defined() ? c10::toString(keys.scalar_type()) : "an undefined tensor"));
  const auto tables = tables_.lock();
  if (!tables)
    throw UsageError(
        fmt::format("embedding table \"{}\": no optimizer holds its rows; make one (or compile() "
                    "the model) before the first forward, and keep it",
                    spec_.name));
  const Millis limit = limit_here();
  // A copy: the caller may change its own.
  const at::Tensor own = keys.detach().reshape(-1);
  const at::Tensor flat = keys.is_cpu() ? own.clone()
                                        : on_host(own, Deadline(patience_with_device(limit)),
                                                  "keys of embedding table " + spec_.name);
  const at::Tensor rows = tensor_of(tables->rows(number_, keys_in(flat)));
  std::vector<int64_t> shape = keys.sizes().vec();
  shape.push_back(spec_.width);
  if (at::GradMode::is_enabled()) {
    rows.set_requires_grad(true);
    look_ups_.push_back({flat, rows});
    has_rows_ = true;
  }
  return detail::to_device(rows.view(shape), keys.device(), limit,
                           "rows of embedding table " + spec_.name);
}

void SparseEmbeddingImpl::connect(const std::shared_ptr<SparseTables>& tables, int number) {
  if (has_rows_ && tables_.lock() != tables)
    throw UsageError(
        fmt::format("embedding table \"{}\": its rows belong to the optimizer that trained or "
                    "loaded them; for another one make the model anew",
                    spec_.name));
  tables_ = tables;
  number_ = number;
  look_ups_.clear();
}

std::vector<RowGradients> SparseEmbeddingImpl::take_gradients() {
  std::vector<RowGradients> taken;
  for (const LookUp& look_up : look_ups_) {
    const at::Tensor& gradient = look_up.rows.grad();
    if (!gradient.defined() || gradient.numel() == 0) continue;
    const auto kept = std::make_shared<LookUp>(LookUp{look_up.keys, gradient.contiguous()});
    taken.push_back({keys_in(kept->keys), span_of(kept->rows), kept});
  }
  look_ups_.clear();
  return taken;
}

// Nothing gives a gradient to rows that only we hold: their graph is gone.
void SparseEmbeddingImpl::zero_gradients() {
  std::erase_if(look_ups_, [](const LookUp& look_up) {
    look_up.rows.mutable_grad().reset();
    return look_up.rows.use_count() == 1;
  });
}

void SparseEmbeddingImpl::pretty_print(std::ostream& stream) const {
  stream << "tutti::nn::SparseEmbedding(" << spec_.words() << ")";
}

}  // namespace tutti::nn
