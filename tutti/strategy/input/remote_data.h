/// What steps of a coordinator's program (steps/cluster_coordinator.h) take beside numbers and
/// strings: tensors, and the batches of a dataset of their worker's own.
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <vector>

#include "tutti/coordinator/cluster_coordinator.h"
#include "tutti/data/dataset.h"

namespace tutti {

/// Dense CPU tensors of any dtype that an Array has, by value: without their graph, and contiguous
/// where they arrive. write() throws UsageError for others.
template <>
struct coordinator::Codec<at::Tensor> {
  static void write(ValueWriter& writer, const at::Tensor& value);
  static at::Tensor read(ValueReader& reader);
};

/// The batches of a dataset, epoch after epoch, without end: what a factory given to
/// ClusterCoordinator::create_per_worker_dataset makes, as a rule.
///
///   const auto make_batches = tutti::remote("batches", [](tutti::RemoteWorker& worker) {
///     return tutti::BatchIterator(quickdraw("doodles").shuffle().batch(64), worker.index());
///   });
///
/// Nothing is shared out: every worker sees the whole dataset, in an order of its own where the
/// dataset is shuffled and seeds differ. shard() first to share it out. Thread rule: one thread.
class BatchIterator {
 public:
  /// Throws UsageError for a dataset without batch() or without samples.
  BatchIterator(data::Dataset dataset, uint64_t seed);

  /// The columns of the next batch, freshly read.
  std::vector<at::Tensor> next();

  int64_t epoch() const noexcept { return number_; }  ///< of the batch that comes next, from 0 on

 private:
  data::Dataset dataset_;
  uint64_t seed_;
  int64_t number_ = 0;
  int64_t step_ = 0;
  data::Epoch epoch_;
};

}  // namespace tutti
