/// A dataset as replicas see it: one part of each global batch per replica.
///
///   auto data = strategy.distribute(train);          // train is batched by the global batch
///   for (auto&& batch : data.epoch(0))
///     strategy.run([&](ReplicaContext& replica) { auto [x, y] = batch.local(replica); ... });
///
/// The number of replicas never changes which samples make up a global batch. Thread rule: the
/// strategy's thread makes epochs and batches; local() and columns() are called by each replica in
/// its own thread, at the same time.
#pragma once

#include <torch/types.h>

#include <functional>
#include <iterator>
#include <memory>
#include <utility>
#include <vector>

#include "tutti/data/dataset.h"
#include "tutti/strategy/strategy.h"

namespace tutti {

/// One worker's dataset of its own: its batches, each of one replica.
struct InputPipeline {
  int64_t num_batches = 0;
  int64_t batch = 0;       ///< samples in each but the last
  int64_t last_batch = 0;  ///< samples in the last
};
/// By worker; null where all share one dataset, whose batches are global.
using InputPipelines = std::shared_ptr<const std::vector<InputPipeline>>;
/// Steps until the last of them is at its end; `local` replicas take a worker's batches in turn.
int64_t steps_of(const std::vector<InputPipeline>& pipelines, int local);

/// One global batch. local() reads this replica's part, in the replica's own thread.
class DistributedBatch {
 public:
  DistributedBatch(std::shared_ptr<const data::Epoch> epoch, int64_t step,
                   std::shared_ptr<const World> world, InputPipelines pipelines = nullptr)
      : epoch_(std::move(epoch)),
        step_(step),
        world_(std::move(world)),
        pipelines_(std::move(pipelines)) {}

  /// Its number in the epoch, from 0.
  int64_t step() const noexcept { return step_; }
  int64_t global_size() const;  ///< true size; the last batch may be smaller
  int64_t first_row(const ReplicaContext& replica) const;   ///< of its part, in the global batch
  int64_t local_size(const ReplicaContext& replica) const;  ///< may be 0

  /// Gradient accumulation: `count` (>= 1) consecutive batches of an epoch, from its first on, are
  /// a group that gets one update; the last one may have fewer. Not where workers are not in step.
  /// Of all workers' samples, and the same on every worker.
  int64_t group_size(int64_t count) const;  ///< samples of the group that this batch is in
  int64_t group_row(int64_t count) const;   ///< of the batch's first row, in its group
  bool ends_group(int64_t count) const;     ///< whether the update comes now

  /// The part's columns as tensors, freshly read, on the replica's device
  /// (ReplicaContext::on_device).
  std::vector<at::Tensor> columns(const ReplicaContext& replica) const;
  /// The same where they were read: on the host.
  std::vector<at::Tensor> host_columns(const ReplicaContext& replica) const;
  /// The first two columns: auto [x, y] = batch.local(replica).
  std::pair<at::Tensor, at::Tensor> local(const ReplicaContext& replica) const;

 private:
  int64_t num_batches() const;
  int64_t size_of(int64_t step, int rank) const;
  int64_t size_of(int64_t step) const;
  int64_t first_of_group(int64_t count) const;
  int64_t samples_between(int64_t first, int64_t last) const;

  std::shared_ptr<const data::Epoch> epoch_;
  int64_t step_;
  std::shared_ptr<const World> world_;  // of the whole epoch: a batch copies no groups
  InputPipelines pipelines_;
};

/// Cheap to copy. Follows the strategy's world: an epoch begun after a resize uses the new one.
class DistributedDataset {
 public:
  /// `number`: among the strategy's datasets, from 1 on; the same on all workers.
  DistributedDataset(Strategy strategy, data::Dataset dataset, int number)
      : strategy_(std::move(strategy)), dataset_(std::move(dataset)), number_(number) {}

  /// This worker's own dataset, batched by the batch of a replica.
  DistributedDataset(Strategy strategy, data::Dataset dataset)
      : DistributedDataset(std::move(strategy), std::move(dataset), 0) {
    generation_ = strategy_.world().generation;
  }

  /// The batches of epoch `number`, in an order that (seed, number) alone decide: a range for
  /// `for`. Of datasets of the workers' own: collective over workers, and UsageError once the world
  /// was resized.
  class Batches;
  Batches epoch(int64_t number) const;

 private:
  Strategy strategy_;
  Batches epoch_of_pipelines(std::shared_ptr<const data::Epoch> epoch) const;

  data::Dataset dataset_;
  int number_;
  int64_t generation_ = -1;  ///< of the world that a dataset of the worker's own was made for
};

/// The global batches of one epoch, in order. Keeps the world it was made for. Where workers are
/// not in step (parameter servers with a staleness) these are the batches that no other worker
/// takes: each is read once, as it is leased.
class DistributedDataset::Batches {
 public:
  /// Gives the next batch after `done` (-1: the first), or size() when there is none.
  using Next = std::function<int64_t(int64_t done)>;
  Batches(std::shared_ptr<const data::Epoch> epoch, World world, Next next, int64_t size,
          InputPipelines pipelines = nullptr)
      : epoch_(std::move(epoch)),
        world_(std::make_shared<const World>(std::move(world))),
        next_(std::move(next)),
        size_(size),
        pipelines_(std::move(pipelines)) {}
  class iterator {
   public:
    using value_type = DistributedBatch;
    using difference_type = std::ptrdiff_t;
    iterator(const Batches* range, int64_t step) : range_(range), step_(step) {}
    DistributedBatch operator*() const {
      return {range_->epoch_, step_, range_->world_, range_->pipelines_};
    }
    iterator& operator++() {
      step_ = range_->next_(step_);
      return *this;
    }
    void operator++(int) { ++*this; }
    bool operator==(const iterator& other) const { return step_ == other.step_; }

   private:
    const Batches* range_;
    int64_t step_;
  };
  iterator begin() const { return {this, next_(-1)}; }
  iterator end() const { return {this, size()}; }
  int64_t size() const { return size_; }  ///< number of global batches, of all workers

 private:
  std::shared_ptr<const data::Epoch> epoch_;
  std::shared_ptr<const World> world_;
  Next next_;
  int64_t size_;
  InputPipelines pipelines_;
};

}  // namespace tutti
