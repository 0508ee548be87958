#include "tutti/strategy/distributed_dataset.h"

#include <torch/types.h>

#include "tutti/base/error.h"
#include "tutti/sync/tensors.h"

namespace tutti {
namespace {

// Nothing for a worker that this world has lost (Strategy::those_here).
data::Share share_of(const data::Epoch& epoch, int64_t step, const World& world,
                     const ReplicaContext& replica) {
  const int rank = world.first_rank + replica.local_rank();
  if (rank >= world.size) return {};
  return data::share(epoch.batch_size(step), world.size, rank, world.shares);
}

}  // namespace

int64_t DistributedBatch::global_size() const { return epoch_->batch_size(step_); }

int64_t DistributedBatch::first_row(const ReplicaContext& replica) const {
  return share_of(*epoch_, step_, world_, replica).begin;
}

int64_t DistributedBatch::local_size(const ReplicaContext& replica) const {
  return share_of(*epoch_, step_, world_, replica).size();
}

std::vector<at::Tensor> DistributedBatch::columns(const ReplicaContext& replica) const {
  const auto part = epoch_->part(step_, share_of(*epoch_, step_, world_, replica));
  std::vector<at::Tensor> tensors;
  tensors.reserve(part.columns.size());
  for (const Array& column : part.columns) tensors.push_back(tensor_of(column));
  return tensors;
}

std::pair<at::Tensor, at::Tensor> DistributedBatch::local(const ReplicaContext& replica) const {
  auto all = columns(replica);
  if (all.size() != 2)
    throw UsageError(
        fmt::format("a batch of {} columns is not a pair (x, y); use columns()", all.size()));
  return {std::move(all[0]), std::move(all[1])};
}

DistributedDataset::Batches DistributedDataset::epoch(int64_t number) const {
  const data::EpochOptions options{.epoch = number, .seed = strategy_.options().seed};
  const auto epoch = std::make_shared<const data::Epoch>(dataset_.epoch(options));
  const int64_t count = epoch->num_batches();
  if (!strategy_.next_batch())
    return {epoch, strategy_.world(), [](int64_t done) { return done + 1; }};
  return {epoch, strategy_.world(), [=, *this](int64_t done) {
            const int64_t next = strategy_.next_batch()(number_, number, count, done);
            return next < 0 ? count : next;
          }};
}

int64_t DistributedDataset::Batches::size() const { return epoch_->num_batches(); }

}  // namespace tutti
