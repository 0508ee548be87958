/// Dataset: rows of a source, in an order that depends on the seed and the epoch alone.
///
///   auto train = quickdraw("doodles", {.split = "train"}).shuffle().batch(128);
///   Epoch epoch = train.epoch({.epoch = 0, .seed = 7});
///   for (int64_t step = 0; step < epoch.num_batches(); ++step)
///     Batch mine = epoch.part(step, share(epoch.batch_size(step), replicas, rank));
///
/// Views are cheap: each call returns a new handle and copies no data. They apply from left to
/// right, `batch` last. The number of replicas never changes which samples make up a global batch.
/// Thread rule: Dataset and Epoch are immutable; any thread may use any handle at any time.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tutti/base/array.h"
#include "tutti/data/source.h"

namespace tutti::data {

namespace detail {
struct View;
struct EpochState;
void require_elements(const Array& array, int64_t num_elements);
}  // namespace detail

/// Samples [begin, end) of a global batch: what one replica trains on.
struct Share {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t size() const noexcept { return end - begin; }
  bool operator==(const Share&) const = default;
};

/// The share of replica `rank` in a global batch of `global_size` samples.
///
/// weights  relative speeds, one a replica, each finite, >= 0, not all 0; empty: all equal
///
/// Shares follow each other in rank order and cover the batch. What does not divide goes to the
/// largest remainders, lower ranks first: 13 over 5 gives 3, 3, 3, 2, 2. A share may be empty.
/// Throws UsageError for a rank or weights out of range.
Share share(int64_t global_size, int replicas, int rank, std::span<const double> weights = {});

struct ShuffleOptions {
  std::optional<uint64_t> seed;  ///< unset: the seed that epoch() is given (that of the training)
  bool each_epoch = true;        ///< false: the same order in every epoch
};

struct EpochOptions {
  int64_t epoch = 0;  ///< 0-based, >= 0
  uint64_t seed = 0;  ///< of the training; used by every shuffle() without a seed of its own
};

/// One pass over a dataset: its global batches by step. Cheap to copy.
class Epoch {
 public:
  int64_t num_samples() const noexcept;
  int64_t num_batches() const noexcept;  ///< the last, partial one counts

  /// Samples in global batch `step`: that of batch(n), less in the last one when it is partial.
  int64_t batch_size(int64_t step) const;

  /// The source rows of global batch `step`, in order. Valid while the Epoch lives.
  std::span<const int64_t> rows(int64_t step) const;

  /// Reads samples [share.begin, share.end) of global batch `step` into fresh memory.
  /// Throws UsageError when step or share are out of range.
  Batch part(int64_t step, Share share) const;

  /// The whole global batch.
  Batch batch(int64_t step) const;

 private:
  friend class Dataset;
  explicit Epoch(std::shared_ptr<const detail::EpochState> state) : state_(std::move(state)) {}
  std::shared_ptr<const detail::EpochState> state_;
};

/// A cheap, copyable handle that owns its source (shared by all views of it).
class Dataset {
 public:
  explicit Dataset(std::shared_ptr<const Source> source);

  /// Permutes all samples seen so far, anew in every epoch.
  Dataset shuffle(ShuffleOptions options = {}) const;
  /// The samples so far, `count` (>= 1) times over. A shuffle before it permutes each time anew:
  /// pass k of epoch e is pass e * count + k of what stands before.
  Dataset repeat(int64_t count) const;
  /// Samples index, index + count, ... of the order so far: `count` shards hold each sample once.
  Dataset shard(int64_t index, int64_t count) const;
  /// The first `count` (>= 0) samples of the order so far; all when there are fewer.
  Dataset take(int64_t count) const;
  /// The samples in two datasets: the last share of them, and the rest, as Keras's
  /// validation_split cuts: floor(n * (1 - last_share)) samples are the rest. What is cut is the
  /// order before the first shuffle or repeat, so that no sample is in both; the views from there
  /// on apply to the rest, and both have this dataset's batch. Throws UsageError unless 0 <
  /// last_share < 1 and both have samples.
  std::pair<Dataset, Dataset> split_last(double last_share) const;
  /// Global batches of `global_size` (>= 1) samples; what is left over is one smaller batch. Comes
  /// last: a view after it is a UsageError; batch() again replaces the size.
  Dataset batch(int64_t global_size) const;

  int64_t num_samples() const;                      ///< in one epoch, after all views
  int64_t num_batches() const;                      ///< in one epoch; UsageError without batch()
  int64_t global_batch_size() const;                ///< that of batch(); 0 when there was none
  const std::vector<Column>& columns() const;       ///< dtype and shape of a row, column by column
  const std::vector<std::string>& classes() const;  ///< names by label; empty when there are none
  int64_t num_classes() const;                      ///< classes().size()

  /// The order of one epoch. Costs 8 bytes a sample. UsageError without batch() or with epoch < 0.
  Epoch epoch(EpochOptions options) const;

 private:
  Dataset then(std::shared_ptr<const detail::View> view) const;

  std::shared_ptr<const Source> source_;
  std::shared_ptr<const detail::View> view_;  ///< the last view; each knows the one before
  int64_t batch_ = 0;
};

/// A dataset of arrays in memory: column c of sample i is row i of columns[c], dtype kept.
/// All have the same first dimension, else UsageError. The arrays are shared, not copied.
Dataset from_arrays(std::vector<Array> columns);

/// An array that takes over a vector: array_of(std::vector<float>{1, 2, 3, 4}, {2, 2}).
/// UsageError when the shape does not hold as many elements.
template <class T>
Array array_of(std::vector<T> values, std::vector<int64_t> shape) {
  auto owner = std::make_shared<std::vector<T>>(std::move(values));
  Array array = Array::view(owner->data(), dtype_of<T>(), std::move(shape), owner);
  detail::require_elements(array, static_cast<int64_t>(owner->size()));
  return array;
}

}  // namespace tutti::data
