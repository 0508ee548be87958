/// Datasets and DataLoaders of LibTorch: a torch::data dataset as one of ours, and a sampler that
/// gives each rank its own samples.
///
///   auto train = data::from_torch(torch::data::datasets::MNIST(folder)).shuffle().batch(64);
///   model.fit(train);                                     // or strategy.distribute(train)
///
///   data::BatchSampler sampler(world, *dataset.size(), 64);   // in a loop of join()
///   auto loader = torch::data::make_data_loader(std::move(dataset), sampler, 64);
///   for (int epoch = 0; epoch < 5; ++epoch)
///     for (auto& batch : *loader) ...
#pragma once

#include <torch/data/datasets/base.h>
#include <torch/data/samplers/base.h>

#include <memory>
#include <mutex>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include "tutti/base/error.h"
#include "tutti/comm/group/group.h"
#include "tutti/data/dataset.h"
#include "tutti/data/rank_batches.h"
#include "tutti/sync/tensors.h"

namespace tutti::data {

using BatchSamplerOptions = RankBatchesOptions;

/// A sampler for torch's make_data_loader: of each global batch the samples that are this rank's.
/// Ranks have as many batches as each other, no sample is repeated, and their parts together are
/// the batches that a Strategy has of the same seed, but for a last one that has not a sample for
/// each rank: it is part of the one before. It says how many samples a batch has: the
/// batch_size of DataLoaderOptions is `batch`, the rank's part of it or 1, which is what it is
/// unless told, else UsageError.
/// Copies share their place, so that one that a loader has taken is told the epoch by another.
/// Thread rule: one thread, that of the loader's loop.
class BatchSampler : public torch::data::samplers::Sampler<> {
 public:
  /// Collective over `world`: Mismatch on every rank where they were given other numbers or
  /// options. UsageError as RankBatches.
  BatchSampler(const Group& world, int64_t samples, int64_t batch,
               const BatchSamplerOptions& options = {});

  /// The next epoch, as loader->begin() does: 0, 1, 2, ... after each other, or that of
  /// set_epoch(). UsageError for another size.
  void reset(std::optional<size_t> new_size = std::nullopt) override;
  std::optional<std::vector<size_t>> next(size_t batch_size) override;
  /// Where the next batch begins: the next epoch behind the last one of an epoch, and what
  /// set_epoch() was told until that begins. Batches that a loader's workers have asked for ahead
  /// count as had: with `workers` above 0 count steps yourself, and set_epoch().
  void save(torch::serialize::OutputArchive& archive) const override;
  /// Any rank may take what another has saved: they are at the same batch. DataError for what no
  /// sampler has saved; Mismatch for one of other numbers or options, or of ranks that have another
  /// number of batches.
  void load(torch::serialize::InputArchive& archive) override;

  /// The next reset() begins `epoch`, >= 0, with its batch `first`, 0 to num_batches(): a loop that
  /// goes on in the middle of an epoch.
  void set_epoch(int64_t epoch, int64_t first = 0);
  int64_t epoch() const noexcept;  ///< the one that was begun last; -1 before

  int64_t num_batches() const noexcept;      ///< of an epoch, on every rank
  int64_t batch_size(int64_t number) const;  ///< of all ranks
  int64_t own_size(int64_t number) const;    ///< this rank's part of it, 1 or more

 private:
  struct State;
  std::shared_ptr<State> state_;
};

/// Throws UsageError on every rank where two of them have the same batch, to the bit: their
/// samplers give all ranks the same samples, and each gradient would count several times. Once,
/// of the first batch, where a loop has a sampler of its own; the same for a batch that is
/// undefined. Collective over `world`.
void require_unlike_batches(const Group& world, const at::Tensor& batch);

namespace detail {

inline void add_column(std::vector<at::Tensor>& columns, const at::Tensor& value) {
  columns.push_back(value);
}
template <class T>
  requires std::is_arithmetic_v<T>
void add_column(std::vector<at::Tensor>& columns, T value) {
  columns.push_back(
      at::scalar_tensor(value, at::dtype(std::is_floating_point_v<T> ? at::kFloat : at::kLong)));
}

/// Data and target of an example, or of some that were stacked.
template <class Example>
std::vector<at::Tensor> columns_of_example(const Example& example) {
  std::vector<at::Tensor> columns;
  add_column(columns, example.data);
  if constexpr (requires { example.target; }) add_column(columns, example.target);
  return columns;
}

/// Throws UsageError where it has no size, or nothing.
int64_t size_of_torch(std::optional<size_t> size);
/// A row of them; UsageError for tensors that no column has.
Sample sample_of_torch(const std::vector<at::Tensor>& columns);
std::vector<Column> columns_of_torch(const Sample& first);

/// Each thread that reads has a copy of the dataset, as torch's workers have.
template <class D>
class TorchSource final : public SampleSource {
 public:
  explicit TorchSource(D dataset)
      : original_(std::move(dataset)), rows_(size_of_torch(original_.size())) {
    columns_ = columns_of_torch(read_row(0));
  }

  int64_t num_rows() const override { return rows_; }
  const std::vector<Column>& columns() const override { return columns_; }
  Sample read_row(int64_t row) const override {
    std::unique_ptr<D> copy = take();
    const std::vector<size_t> request{static_cast<size_t>(row)};
    auto got = copy->get_batch(request);
    Sample sample;
    if constexpr (requires { typename decltype(got)::DataType; }) {  // an example: stacked
      std::vector<at::Tensor> columns = columns_of_example(got);
      for (at::Tensor& column : columns) column = column.select(0, 0);
      sample = sample_of_torch(columns);
    } else {
      sample = sample_of_torch(columns_of_example(got.at(0)));
    }
    const std::scoped_lock lock(mutex_);
    free_.push_back(std::move(copy));
    return sample;
  }

 private:
  std::unique_ptr<D> take() const {
    const std::scoped_lock lock(mutex_);
    if (free_.empty()) return std::make_unique<D>(original_);
    std::unique_ptr<D> copy = std::move(free_.back());
    free_.pop_back();
    return copy;
  }

  const D original_;
  int64_t rows_;
  std::vector<Column> columns_;
  mutable std::mutex mutex_;
  mutable std::vector<std::unique_ptr<D>> free_;
};

}  // namespace detail

/// The samples of a torch dataset, by number: data and target of its examples are the columns "x"
/// and "y"; after .map(torch::data::transforms::Stack<>()) the same. Tensors of the CPU; targets
/// that are plain numbers become int64 or float32 []. D is copied for each thread that reads.
/// Throws UsageError for a dataset without a size, or without samples; what get() throws in a step
/// names it. Samples of another shape than the first are a DataError. Datasets that give samples
/// one after another (StatefulDataset, ChunkDataset) do not compile: from_generator() has those.
template <class D>
Dataset from_torch(D dataset) {
  static_assert(
      !D::is_stateful && std::is_same_v<typename D::BatchRequestType, c10::ArrayRef<size_t>>,
      "from_torch: a dataset of which samples are asked for by number; of one that gives "
      "them one after another make a generator (data::from_generator)");
  static_assert(std::is_copy_constructible_v<D>,
                "from_torch: each thread that reads has a copy of the dataset, as torch's workers "
                "have; make it copyable");
  return Dataset(std::make_shared<detail::TorchSource<D>>(std::move(dataset)));
}

}  // namespace tutti::data
