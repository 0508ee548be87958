#include "tutti/strategy/distributed_dataset.h"

#include <torch/types.h>

#include <algorithm>

#include "tutti/base/error.h"
#include "tutti/sync/tensors.h"

namespace tutti {
namespace {

// Nothing for a worker that this world has lost (Strategy::those_here).
data::Share share_of(const data::Epoch& epoch, int64_t step, const World& world,
                     const ReplicaContext& replica) {
  if (replica.local_rank() >= world.local)
    throw UsageError(fmt::format(
        "batch: replica {} of {} is of another strategy than this batch, of which a worker has {} "
        "parts",
        replica.rank(), replica.num_replicas_in_sync(), world.local));
  const int rank = world.first_rank + replica.local_rank();
  if (rank >= world.size) return {};
  return data::share(epoch.batch_size(step), world.size, rank, world.shares);
}

}  // namespace

int64_t steps_of(const std::vector<InputPipeline>& pipelines, int local) {
  int64_t steps = 0;
  for (const InputPipeline& one : pipelines)
    steps = std::max(steps, (one.num_batches + local - 1) / local);
  return steps;
}

// Of a dataset of the workers' own: a worker's replicas take its batches in turn.
int64_t DistributedBatch::size_of(int64_t step, int rank) const {
  const InputPipeline& own = pipelines_->at(static_cast<size_t>(rank / world_->local));
  const int64_t number = step * world_->local + rank % world_->local;
  if (number >= own.num_batches) return 0;
  return number + 1 == own.num_batches ? own.last_batch : own.batch;
}

int64_t DistributedBatch::size_of(int64_t step) const {
  if (!pipelines_) return epoch_->batch_size(step);
  int64_t sum = 0;
  for (int rank = 0; rank < world_->size; ++rank) sum += size_of(step, rank);
  return sum;
}

int64_t DistributedBatch::num_batches() const {
  return pipelines_ ? steps_of(*pipelines_, world_->local) : epoch_->num_batches();
}

int64_t DistributedBatch::global_size() const { return size_of(step_); }

int64_t DistributedBatch::first_row(const ReplicaContext& replica) const {
  if (!pipelines_) return share_of(*epoch_, step_, *world_, replica).begin;
  int64_t sum = 0;
  for (int rank = 0; rank < replica.rank(); ++rank) sum += size_of(step_, rank);
  return sum;
}

int64_t DistributedBatch::local_size(const ReplicaContext& replica) const {
  if (!pipelines_) return share_of(*epoch_, step_, *world_, replica).size();
  return size_of(step_, replica.rank());
}

int64_t DistributedBatch::samples_between(int64_t first, int64_t last) const {
  int64_t samples = 0;
  const int64_t end = std::min(last, num_batches());
  for (int64_t step = first; step < end; ++step) samples += size_of(step);
  return samples;
}

int64_t DistributedBatch::first_of_group(int64_t count) const {
  if (count < 1)
    throw UsageError(fmt::format("a group of {} batches has no update; expected 1 or more", count));
  return step_ - step_ % count;
}

int64_t DistributedBatch::group_size(int64_t count) const {
  return samples_between(first_of_group(count), first_of_group(count) + count);
}

int64_t DistributedBatch::group_row(int64_t count) const {
  return samples_between(first_of_group(count), step_);
}

bool DistributedBatch::ends_group(int64_t count) const {
  return step_ + 1 == first_of_group(count) + count || step_ + 1 == num_batches();
}

std::vector<at::Tensor> DistributedBatch::columns(const ReplicaContext& replica) const {
  return replica.on_device(host_columns(replica));
}

std::vector<at::Tensor> DistributedBatch::host_columns(const ReplicaContext& replica) const {
  const int64_t own = local_size(replica);
  const int64_t number = step_ * world_->local + replica.local_rank();
  const auto part = !pipelines_ ? epoch_->part(step_, share_of(*epoch_, step_, *world_, replica))
                                : epoch_->part(own == 0 ? 0 : number, {0, own});
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
  if (generation_ >= 0) return epoch_of_pipelines(epoch);
  const int64_t count = epoch->num_batches();
  if (!strategy_.next_batch())
    return {epoch, strategy_.world(), [](int64_t done) { return done + 1; }, count};
  return {epoch, strategy_.world(),
          [=, *this](int64_t done) {
            const int64_t next = strategy_.next_batch()(number_, number, count, done);
            return next < 0 ? count : next;
          },
          count};
}

// Each worker tells the others how many batches it has, and how large they are.
DistributedDataset::Batches DistributedDataset::epoch_of_pipelines(
    std::shared_ptr<const data::Epoch> epoch) const {
  Strategy strategy = strategy_;
  const World& world = strategy.world();
  if (world.generation != generation_)
    throw UsageError(
        "the world was resized since distribute_from_function() made this dataset; call it again");
  if (epoch->num_batches() == 0)
    throw UsageError("distribute_from_function: the function made a dataset without samples");
  const int64_t count = epoch->num_batches();
  const at::Tensor own =
      torch::tensor({{count, epoch->batch_size(0), epoch->batch_size(count - 1)}}, at::kLong);
  const at::Tensor all = strategy.gather(PerReplica<at::Tensor>(
      std::vector<at::Tensor>(static_cast<size_t>(world.local), own), world.first_rank));
  auto pipelines = std::make_shared<std::vector<InputPipeline>>();
  for (int64_t rank = 0; rank < all.size(0); rank += world.local) {
    const auto row = all.accessor<int64_t, 2>()[rank];
    pipelines->push_back({row[0], row[1], row[2]});
  }
  const int64_t steps = steps_of(*pipelines, world.local);
  return {std::move(epoch), world, [](int64_t done) { return done + 1; }, steps,
          std::move(pipelines)};
}

}  // namespace tutti
