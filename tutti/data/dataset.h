/// Dataset: an input pipeline, a pure function of (seed, epoch, batch, row).
///
///   auto train = image_folder("photos/train")
///                    .shuffle()
///                    .map(transforms::decode())
///                    .map(transforms::random_resized_crop(224))
///                    .batch(64);
///   Epoch epoch = train.epoch({.epoch = 0, .seed = 7});
///   for (int64_t step = 0; step < epoch.num_batches(); ++step)
///     Batch mine = epoch.part(step, share(epoch.batch_size(step), replicas, rank));
///
/// Operators apply from left to right, `batch` last; each returns a new handle and copies no data.
/// Neither replicas nor workers nor threads change which samples make up a global batch, nor what
/// is in them. Each operator is one of three kinds:
///   addressable  sample i is computed from numbers alone: map, shuffle, take, zip, ...
///   keyed        it looks at every sample once, by all cores, when it is called: filter, flat_map,
///                padded_batch, bucket_by_length; addressable from then on
///   sequential   samples come one after another: from_generator. A worker that needs sample i has
///                all before it made; going back begins anew.
/// Thread rule: Dataset and Epoch are immutable; any thread may use any handle at any time.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tutti/base/array.h"
#include "tutti/data/batch_transform.h"
#include "tutti/data/operators.h"
#include "tutti/data/share.h"
#include "tutti/data/source.h"
#include "tutti/data/transform.h"

namespace tutti::data {

namespace detail {
struct Batching;
struct Combining;
class Content;
struct EpochState;
struct View;
void require_elements(const Array& array, int64_t num_elements);
}  // namespace detail

struct EpochOptions {
  int64_t epoch = 0;  ///< 0-based, >= 0
  uint64_t seed = 0;  ///< of the training; used by every shuffle() without a seed of its own
};

/// In place of numbers in Dataset::shard(): those of the worker that reads.
inline constexpr int64_t kShardHint = -1;

/// One pass over a dataset: its global batches by step. Cheap to copy; copies share what runs
/// (generators) and is remembered.
class Epoch {
 public:
  int64_t num_samples() const noexcept;
  int64_t num_batches() const noexcept;  ///< the last, partial one counts

  /// Samples in global batch `step`: that of batch(n), less in the last one when it is partial.
  int64_t batch_size(int64_t step) const;

  /// Samples in the batches before it.
  int64_t first_sample(int64_t step) const;

  /// The samples of global batch `step`, in order, by their numbers in the source; where sources
  /// are combined, in the combination. Valid while the Epoch lives.
  std::span<const int64_t> rows(int64_t step) const;

  /// What a row of global batch `step` is: the dataset's columns, with the sizes that padding
  /// gives. Sizes that differ without padding stay kAnySize.
  std::vector<Column> columns(int64_t step) const;

  /// Computes samples [share.begin, share.end) of global batch `step` into fresh memory. Throws
  ///   UsageError  step or share are out of range
  ///   DataError   a sample is damaged, or of another shape than the rest: with its place in the
  ///               source, row, batch, epoch and stage
  ///   IoError     a file cannot be read, after several tries
  Batch part(int64_t step, Share share) const;

  /// The whole global batch.
  Batch batch(int64_t step) const;

 private:
  friend class Dataset;
  friend struct detail::EpochState;
  explicit Epoch(std::shared_ptr<const detail::EpochState> state) : state_(std::move(state)) {}
  std::shared_ptr<const detail::EpochState> state_;
};

/// A cheap, copyable handle that owns what it reads from (shared by all datasets made of it).
class Dataset {
 public:
  explicit Dataset(std::shared_ptr<const Source> source);

  // Which samples, in which order. Addressable.

  /// Permutes all samples seen so far, anew in every epoch.
  Dataset shuffle(ShuffleOptions options = {}) const;
  /// The samples so far, `count` (>= 1) times over. A shuffle before it permutes each time anew:
  /// pass k of epoch e is pass e * count + k of what stands before; maps draw anew too.
  Dataset repeat(int64_t count) const;
  /// Samples index, index + count, ... of the order so far: `count` shards hold each sample once.
  /// shard(kShardHint, kShardHint): all of them here, and of each worker its own where
  /// Strategy::distribute is told so.
  Dataset shard(int64_t index, int64_t count) const;
  /// Those of files index, index + count, ..., in their order; whatever was shuffled is shuffled
  /// anew among them. Throws UsageError for sources that are not made of files one after another,
  /// and with fewer files than shards.
  Dataset shard_files(int64_t index, int64_t count) const;
  /// shard(index, count) in the place of each shard(kShardHint, kShardHint). UsageError where there
  /// is none.
  Dataset shard_where_hinted(int64_t index, int64_t count) const;
  /// The first `count` (>= 0) samples of the order so far; all when there are fewer.
  Dataset take(int64_t count) const;
  /// All but the first `count` (>= 0) of them.
  Dataset skip(int64_t count) const;
  /// The samples in two datasets: the last share of them, and the rest, as Keras's
  /// validation_split cuts: floor(n * (1 - last_share)) samples are the rest. What is cut is the
  /// order before the first shuffle or repeat, so that no sample is in both; the views from there
  /// on apply to the rest, filter() and flat_map() to both, and both have this dataset's batch.
  /// Throws UsageError unless 0 < last_share < 1 and both have samples, and where samples were put
  /// together (concatenate, zip, window, ...) behind a shuffle or repeat.
  std::pair<Dataset, Dataset> split_last(double last_share) const;

  // What a sample is. Maps are addressable: their draws are keyed by (seed, epoch, sample, stage),
  // wherever in the order it stands.

  /// Each sample through a transform. Before batch().
  Dataset map(TransformHandle transform) const;
  /// Through a function that many threads may call at once; an exception from it is a DataError
  /// with the sample's place.
  Dataset map(std::function<Sample(Sample, Draw&)> function, MapOptions options = {}) const;
  /// Through one that does not draw: what comes out can be kept.
  Dataset map(std::function<Sample(Sample)> function, MapOptions options = {}) const;
  /// Keyed. The samples that `keeps` is true for; it sees those that there are so far. A sample
  /// that is damaged is a DataError here. UsageError behind a map that draws or a generator, and
  /// behind a take(), skip() or shard() of shuffled samples or weighted(), where the number would
  /// differ by the epoch.
  Dataset filter(std::function<bool(const Sample&)> keeps,
                 const std::string& name = "filter") const;
  /// Keyed. The samples that `parts` makes of each, one after another, as many in every epoch.
  /// UsageError as of filter().
  Dataset flat_map(std::function<std::vector<Sample>(Sample)> parts, MapOptions options = {}) const;
  /// After batch(): takes it back; what drop_remainder left out stays out. Else the rows of each
  /// sample's columns, which all have the same first size, as samples: keyed where it varies, with
  /// the UsageErrors of filter() there.
  Dataset unbatch() const;
  /// `size` (>= 1) samples of the order so far as one: [size, ...]. What is left over is dropped.
  /// UsageError where shapes differ, and of a generator.
  Dataset window(int64_t size, WindowOptions options = {}) const;

  /// What the stages so far make of a sample is kept in memory, once for all epochs, as one copy
  /// for all workers of a host, up to `most_bytes`; what does not fit is computed each time, since
  /// throwing out would help nobody where each comes once an epoch. UsageError behind a map that
  /// draws: its draws would be frozen.
  Dataset cache(int64_t most_bytes = int64_t{4} << 30) const;
  /// The same in files of a folder, which is made: several jobs may share it, and one that ended
  /// early goes on with it. Samples are found by the names of stages and a fingerprint of the
  /// source; UsageError behind what has none: a lambda, flat_map(), unbatch(), window(), zip(), and
  /// arrays.
  Dataset cache(const std::filesystem::path& folder) const;

  // Batches. Last: after them only map() of a BatchTransform, unbatch(), and another batch, which
  // replaces the size.

  /// Global batches of `global_size` (>= 1) samples; what is left over is one smaller batch, or
  /// with drop_remainder none.
  Dataset batch(int64_t global_size, bool drop_remainder = false) const;
  /// Keyed. The same where sizes of columns vary: shorter rows are padded to the longest of the
  /// *global* batch, so that shapes do not depend on the number of replicas.
  Dataset padded_batch(int64_t global_size, const PadOptions& options = {}) const;
  /// Keyed. Batches of samples that are about equally long: in the order so far each goes into the
  /// bucket of its length, and a full bucket is a batch; what is left over comes last, as smaller
  /// batches, short ones first. UsageError as of filter().
  Dataset bucket_by_length(BucketOptions options) const;
  /// Of whole batches: mixup, cutmix. UsageError behind padding.
  Dataset map(BatchTransformHandle transform) const;

  int64_t num_samples() const;                      ///< in one epoch, after all views
  int64_t num_batches() const;                      ///< in one epoch; UsageError without batch()
  int64_t global_batch_size() const;                ///< the largest; 0 when there was no batch()
  const std::vector<Column>& columns() const;       ///< dtype and shape of a row, column by column
  const std::vector<std::string>& classes() const;  ///< names by label; empty when there are none
  int64_t num_classes() const;                      ///< classes().size()
  /// Samples come from a generator, one after another.
  bool sequential() const;

  /// The order of one epoch. Costs 8 bytes a sample. UsageError without batch() or with epoch < 0.
  Epoch epoch(EpochOptions options) const;

 private:
  friend struct detail::Combining;
  Dataset(std::shared_ptr<const detail::Content> content, std::shared_ptr<const detail::View> view)
      : content_(std::move(content)), view_(std::move(view)) {}
  Dataset then(std::shared_ptr<const detail::View> view) const;
  Dataset viewed(std::shared_ptr<const detail::View> view) const;
  Dataset of(std::shared_ptr<const detail::Content> content) const;
  Dataset batched(detail::Batching batching) const;
  const detail::Batching& batching() const;
  void require_no_batch() const;

  std::shared_ptr<const detail::Content> content_;
  std::shared_ptr<const detail::View> view_;  ///< the last view; each knows the one before
  std::shared_ptr<const detail::Batching> batching_;
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
