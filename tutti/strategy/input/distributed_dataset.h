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
#include "tutti/data/loader/loader.h"
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
  /// `loader` has begun with this epoch; null: each replica computes its part when it asks for it.
  DistributedBatch(std::shared_ptr<const data::Epoch> epoch, int64_t step,
                   std::shared_ptr<const mesh::Topology> topology,
                   InputPipelines pipelines = nullptr,
                   std::shared_ptr<data::Loader> loader = nullptr)
      : epoch_(std::move(epoch)),
        step_(step),
        topology_(std::move(topology)),
        pipelines_(std::move(pipelines)),
        loader_(std::move(loader)) {}

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

  /// The part's columns as tensors, on the replica's device (ReplicaContext::on_device). Once:
  /// where a loader computes ahead, a part that was taken is computed anew for who asks again.
  std::vector<at::Tensor> columns(const ReplicaContext& replica) const;
  /// The same where they were read: on the host.
  std::vector<at::Tensor> host_columns(const ReplicaContext& replica) const;
  /// The part of any local replica, on the host, before that one computes: what is measured of a
  /// replica (shares by speed) begins by ReplicaContext::computes(). As columns(): once.
  std::vector<at::Tensor> read(int local_rank, Millis time_limit) const;
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
  std::shared_ptr<const mesh::Topology> topology_;
  InputPipelines pipelines_;
  std::shared_ptr<data::Loader> loader_;
};

/// What of the data each worker reads (tf.data's AutoShardPolicy).
enum class AutoShard : uint8_t {
  /// Global batches, of which each worker computes its replicas' parts: any number of workers
  /// trains the same batches. What auto_select chooses, whatever the source.
  data,
  auto_select,
  /// Each worker has files of its own, every n-th, and batches of its own of them: with many
  /// workers fewer files are opened by each, but batches depend on their number. UsageError with
  /// fewer files than workers, and for sources that are not made of files one after another.
  file,
  /// Each worker has all of it, in an order of its own.
  off,
  /// The shard() that was made with data::kShardHint gets the worker's number: the rest is as off.
  hint,
};

struct DistributeOptions {
  AutoShard auto_shard = AutoShard::auto_select;
  data::LoaderOptions loader{};
};

/// Cheap to copy. Follows the strategy's world: an epoch begun after a resize uses the new one.
class DistributedDataset {
 public:
  /// `number`: among the strategy's datasets, from 1 on; the same on all workers. 0: this worker's
  /// own dataset, batched by the batch of a replica; its order has a seed of its own with
  /// `own_order`.
  DistributedDataset(Strategy strategy, data::Dataset dataset, int number,
                     const data::LoaderOptions& loader, bool own_order = false);

  /// The batches of epoch `number`, in an order that (seed, number) alone decide: a range for
  /// `for`. Of datasets of the workers' own: collective over workers, and UsageError once the world
  /// was resized. `first`, 0 to their number: a loop that goes on in the middle of an epoch begins
  /// with that one, and those before are not computed; UsageError for any other, and where workers
  /// are not in step and `first` is not 0.
  class Batches;
  Batches epoch(int64_t number, int64_t first = 0) const;

 private:
  Strategy strategy_;
  InputPipelines meet(const data::Epoch& epoch) const;
  void cut_anew(std::shared_ptr<const mesh::Topology>& topology, const data::Epoch& epoch,
                int64_t next, int64_t count) const;

  data::Dataset dataset_;
  int number_;
  uint64_t seed_;
  int64_t generation_ = -1;  ///< of the world that a dataset of the worker's own was made for
  std::shared_ptr<data::Loader> loader_;
};

/// The global batches of one epoch, in order. Keeps the world it was made for, but for shares that
/// move (moving_shares.h): going on to the next batch is where they do. Where workers are
/// not in step (parameter servers with a staleness) these are the batches that no other worker
/// takes: each is computed as it is leased. Of two epochs that are walked through at once the one
/// that began last is computed ahead.
class DistributedDataset::Batches {
 public:
  /// Gives the next batch after `done` (-1: none), or size() when there is none.
  using Next = std::function<int64_t(int64_t done)>;
  /// `topology`: that of the batch which `next` has given last.
  Batches(std::shared_ptr<const data::Epoch> epoch,
          std::shared_ptr<const std::shared_ptr<const mesh::Topology>> topology, Next next,
          int64_t first, int64_t size, InputPipelines pipelines,
          std::shared_ptr<data::Loader> loader)
      : epoch_(std::move(epoch)),
        topology_(std::move(topology)),
        next_(std::move(next)),
        first_(first),
        size_(size),
        pipelines_(std::move(pipelines)),
        loader_(std::move(loader)) {}
  class iterator {
   public:
    using value_type = DistributedBatch;
    using difference_type = std::ptrdiff_t;
    iterator(const Batches* range, int64_t step) : range_(range), step_(step) {}
    DistributedBatch operator*() const {
      return {range_->epoch_, step_, *range_->topology_, range_->pipelines_, range_->loader_};
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
  iterator begin() const { return {this, next_(first_ - 1)}; }
  iterator end() const { return {this, size()}; }
  int64_t size() const { return size_; }  ///< number of global batches of the epoch, of all workers

 private:
  std::shared_ptr<const data::Epoch> epoch_;
  std::shared_ptr<const std::shared_ptr<const mesh::Topology>> topology_;
  Next next_;
  int64_t first_;
  int64_t size_;
  InputPipelines pipelines_;
  std::shared_ptr<data::Loader> loader_;
};

}  // namespace tutti
