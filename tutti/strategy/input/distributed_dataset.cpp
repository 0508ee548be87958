#include "tutti/strategy/input/distributed_dataset.h"

#include <torch/types.h>

#include <algorithm>

#include "tutti/base/error.h"
#include "tutti/base/log.h"
#include "tutti/base/random.h"
#include "tutti/data/detail/epoch_state.h"
#include "tutti/strategy/input/detail/input.h"
#include "tutti/strategy/membership/detail/worlds.h"
#include "tutti/strategy/moving_shares.h"
#include "tutti/strategy/strategy_state.h"
#include "tutti/sync/tensors.h"

namespace tutti {
namespace {

data::Share share_of(const data::Epoch& epoch, int64_t step, const mesh::Topology& topology,
                     const ReplicaContext& replica) {
  if (replica.local_rank() >= topology.local)
    throw UsageError(fmt::format(
        "batch: replica {} of {} is of another strategy than this batch, of which a worker has {} "
        "parts",
        replica.rank(), replica.num_replicas_in_sync(), topology.local));
  return detail::part_of(epoch, topology, nullptr, step, replica.local_rank()).share;
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
  const InputPipeline& own = pipelines_->at(static_cast<size_t>(rank / topology_->local));
  const int64_t number = step * topology_->local + rank % topology_->local;
  if (number >= own.num_batches) return 0;
  return number + 1 == own.num_batches ? own.last_batch : own.batch;
}

int64_t DistributedBatch::size_of(int64_t step) const {
  if (!pipelines_) return epoch_->batch_size(step);
  int64_t sum = 0;
  for (int rank = 0; rank < topology_->size; ++rank) sum += size_of(step, rank);
  return sum;
}

int64_t DistributedBatch::num_batches() const {
  return pipelines_ ? steps_of(*pipelines_, topology_->local) : epoch_->num_batches();
}

int64_t DistributedBatch::global_size() const { return size_of(step_); }

int64_t DistributedBatch::first_row(const ReplicaContext& replica) const {
  if (!pipelines_) return share_of(*epoch_, step_, *topology_, replica).begin;
  int64_t sum = 0;
  for (int rank = 0; rank < replica.rank(); ++rank) sum += size_of(step_, rank);
  return sum;
}

int64_t DistributedBatch::local_size(const ReplicaContext& replica) const {
  if (!pipelines_) return share_of(*epoch_, step_, *topology_, replica).size();
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
  const int64_t size = local_size(replica);  // of a replica of this strategy
  auto tensors = read(replica.local_rank(), replica.time_limit());
  if (replica.is_measured()) replica.computes(size, global_size());
  return tensors;
}

std::vector<at::Tensor> DistributedBatch::read(int local_rank, Millis time_limit) const {
  data::Batch batch;
  if (loader_ && loader_->has(*epoch_, step_)) {
    batch = loader_->take(step_, local_rank, Deadline(time_limit));
  } else {
    if (loader_ && loader_->replaces())
      throw UsageError(
          "batch: its dataset has gone on to another epoch, and damaged samples are replaced in "
          "the "
          "one that was begun last: walk them one after another, or without on_bad");
    const auto part = detail::part_of(*epoch_, *topology_, pipelines_, step_, local_rank);
    batch = epoch_->part(part.batch, part.share);
  }
  std::vector<at::Tensor> tensors;
  tensors.reserve(batch.columns.size());
  for (const Array& column : batch.columns) tensors.push_back(tensor_of(column));
  return tensors;
}

std::pair<at::Tensor, at::Tensor> DistributedBatch::local(const ReplicaContext& replica) const {
  auto all = columns(replica);
  if (all.size() != 2)
    throw UsageError(
        fmt::format("a batch of {} columns is not a pair (x, y); use columns()", all.size()));
  return {std::move(all[0]), std::move(all[1])};
}

DistributedDataset::DistributedDataset(Strategy strategy, data::Dataset dataset, int number,
                                       const data::LoaderOptions& loader, bool own_order)
    : strategy_(std::move(strategy)),
      dataset_(std::move(dataset)),
      number_(number),
      seed_(strategy_.options().seed),
      loader_(
          detail::make_loader(loader, strategy_.world(), strategy_.options().threads_per_replica)) {
  if (number_ > 0) {
    detail::share_caches(strategy_.membership(), dataset_);
    detail::require_same_data(strategy_.membership(), "distribute", "data", dataset_, seed_);
  }
  if (number_ == 0) generation_ = strategy_.world().generation;
  if (own_order)
    seed_ = random_key(seed_, RandomPurpose::shuffle,
                       {static_cast<uint64_t>(strategy_.world().process())});
}

DistributedDataset::Batches DistributedDataset::epoch(int64_t number, int64_t first) const {
  const data::EpochOptions options{.epoch = number, .seed = seed_};
  const auto epoch = std::make_shared<const data::Epoch>(dataset_.epoch(options));
  const auto topology = std::make_shared<const mesh::Topology>(strategy_.world());
  const InputPipelines pipelines = generation_ >= 0 ? meet(*epoch) : nullptr;
  const int64_t count = pipelines ? steps_of(*pipelines, topology->local) : epoch->num_batches();
  const bool leased = !pipelines && strategy_.next_batch();
  if (first < 0 || first > count || (leased && first > 0))
    throw UsageError(
        leased
            ? fmt::format("epoch {}: begun with batch {}: where workers are not in step each "
                          "takes those that no other has; give none",
                          number, first)
            : fmt::format("epoch {}: begun with batch {}, must be 0 to {}", number, first, count));
  detail::begin_epoch(*loader_, *epoch, topology, pipelines, first, leased ? 0 : count);
  const auto cut = std::make_shared<std::shared_ptr<const mesh::Topology>>(topology);
  Batches::Next next = [=, *this](int64_t done) {
    cut_anew(*cut, *epoch, done + 1, count);
    return done + 1;
  };
  if (leased)
    next = [=, *this](int64_t done) {
      const int64_t leased_step = strategy_.next_batch()(number_, number, count, done);
      if (leased_step < 0) return count;
      if (loader_->has(*epoch, leased_step)) loader_->expect(leased_step);
      return leased_step;
    };
  return {epoch, cut, std::move(next), first, count, pipelines, loader_};
}

// Where shares move: before step `next` of `count` of an epoch, which is cut as `topology` says.
void DistributedDataset::cut_anew(std::shared_ptr<const mesh::Topology>& topology,
                                  const data::Epoch& epoch, int64_t next, int64_t count) const {
  MovingShares* const moving = strategy_.moving_shares();
  if (moving == nullptr || next >= count) return;
  if (ReplicaContext::current() != nullptr)
    throw UsageError(
        "batches: shares that follow speeds or a file move between two runs, and here a loop goes "
        "from batch to batch inside run(); give each batch a run() of its own");
  moving->move();
  if (topology->shares == strategy_.world().shares) return;
  topology = std::make_shared<const mesh::Topology>(strategy_.world());
  if (loader_->has(epoch, next))
    detail::begin_epoch(*loader_, epoch, topology, nullptr, next, count);
}

// Each worker tells the others how many batches it has, and how large they are.
InputPipelines DistributedDataset::meet(const data::Epoch& epoch) const {
  if (ReplicaContext::current() != nullptr)
    throw UsageError(
        "distribute: epoch() of the worker's own dataset was called inside run(); call it outside, "
        "where workers meet");
  if (strategy_.world().generation != generation_)
    throw UsageError(
        "the world was resized since this dataset of the worker's own was made; make it again");
  const int64_t count = epoch.num_batches();
  if (count == 0) throw UsageError("distribute: the worker's own dataset has no samples");
  for (int64_t step = 1; step + 1 < count; ++step)
    if (epoch.batch_size(step) != epoch.batch_size(0))
      throw UsageError(fmt::format(
          "distribute: the worker's own dataset has batches of {} and of {} samples; all but the "
          "last have to be equal, so leave bucket_by_length() out",
          epoch.batch_size(0), epoch.batch_size(step)));
  return std::make_shared<const std::vector<InputPipeline>>(strategy_.membership().all_of(
      InputPipeline{count, epoch.batch_size(0), epoch.batch_size(count - 1)}));
}

int64_t InputContext::per_replica_batch_size(int64_t global_batch_size) const {
  if (global_batch_size < 1 || global_batch_size % num_replicas_in_sync != 0)
    throw UsageError(
        fmt::format("per_replica_batch_size: a global batch of {} does not divide by {} replicas",
                    global_batch_size, num_replicas_in_sync));
  return global_batch_size / num_replicas_in_sync;
}

namespace {

// Nor do shares of a batch mean anything where each worker has batches of its own.
void require_workers_stay(const Strategy& strategy, std::string_view operation) {
  if (strategy.moving_shares() != nullptr)
    throw UsageError(fmt::format(
        "{}: shares that follow speeds or a file are of global batches, and here each worker has "
        "batches of its own; let all share one dataset (AutoShard::data)",
        operation));
  if (!strategy.membership().all_stay())
    throw UsageError(fmt::format(
        "{}: workers may be lost, and nobody else has their data; let all share one dataset, or "
        "--on-lost-worker end",
        operation));
}

// What worker `number` of `count` reads of it.
data::Dataset part_of_worker(const data::Dataset& dataset, AutoShard how, int number, int count) {
  if (how == AutoShard::file) return dataset.shard_files(number, count);
  if (how == AutoShard::hint) return dataset.shard_where_hinted(number, count);
  return dataset;
}

const char* words_of(AutoShard how) {
  switch (how) {
    case AutoShard::file: return "file: each worker reads files of its own, every n-th of them";
    case AutoShard::off: return "off: each worker reads all of the data";
    case AutoShard::hint:
      return "hint: each worker reads what shard(kShardHint) leaves of the data";
    default: return "data: each worker computes its replicas' parts of the same global batches";
  }
}

}  // namespace

DistributedDataset Strategy::distribute_from_function(
    const std::function<data::Dataset(const InputContext&)>& fn) {
  require_cross_replica("distribute_from_function");
  require_workers_stay(*this, "distribute_from_function");
  const InputContext context{.num_input_pipelines = world().processes(),
                             .input_pipeline_id = world().process(),
                             .num_replicas_in_sync = world().size,
                             .seed = options().seed,
                             .local_replicas = world().local};
  return DistributedDataset(*this, fn(context), 0, {});
}

DistributedDataset Strategy::distribute(const data::Dataset& dataset) {
  return distribute(dataset, {});
}

DistributedDataset Strategy::distribute(const data::Dataset& dataset,
                                        const DistributeOptions& options) {
  require_cross_replica("distribute");
  const AutoShard how = options.auto_shard;
  const int workers = world().processes();
  if (workers > 1) log(LogLevel::info, "distribute: auto_shard {}", words_of(how));
  if (how == AutoShard::data || how == AutoShard::auto_select) {
    const int64_t rows = dataset.global_batch_size();
    require_rows_for_all("distribute", rows, world());
    if (state_->moving && rows > 0) state_->moving->require_rows("distribute", rows);
    return DistributedDataset(*this, dataset, ++state_->num_datasets, options.loader);
  }
  require_workers_stay(*this, "distribute");
  const int64_t global = dataset.global_batch_size();
  if (global == 0 || global % world().size != 0)
    throw UsageError(
        fmt::format("distribute: a global batch of {} does not divide by {} replicas, which each "
                    "have batches of "
                    "their own",
                    global, world().size));
  const data::Dataset own = part_of_worker(dataset, how, world().process(), workers);
  return DistributedDataset(*this, data::detail::Combining::rebatched(own, global / world().size),
                            0, options.loader,
                            /*own_order=*/true);
}

}  // namespace tutti
