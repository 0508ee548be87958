#include "tutti/data/dataset.h"

#include <algorithm>

#include "tutti/base/error.h"
#include "tutti/data/detail/content.h"
#include "tutti/data/detail/epoch_state.h"
#include "tutti/data/detail/order.h"

namespace tutti::data {
namespace {

class FunctionMap final : public Transform {
 public:
  FunctionMap(std::function<Sample(Sample, Draw&)> function, MapOptions options, bool draws)
      : function_(std::move(function)), options_(std::move(options)), draws_(draws) {}
  std::string name() const override { return options_.name; }
  std::vector<Column> columns(const std::vector<Column>&) const override {
    return options_.columns;
  }
  Sample apply(Sample in, Draw& draw) const override { return function_(std::move(in), draw); }
  bool draws() const override { return draws_; }
  bool named() const override { return false; }

 private:
  std::function<Sample(Sample, Draw&)> function_;
  MapOptions options_;
  bool draws_;
};

// What a function makes of the first sample.
template <class Function>
auto tried(const detail::Content& content, const detail::View& view, const std::string& who,
           const Function& function) {
  if (view.num_samples == 0 || content.sequential())
    throw UsageError(fmt::format(
        "{}: what comes out cannot be looked up, since {}; say it in MapOptions::columns", who,
        view.num_samples == 0 ? "there is no sample" : "samples come from a generator"));
  detail::Session session(0);
  detail::Reading reading(session);
  const detail::Ref first = view.order({}).at(0);
  try {
    Sample sample = content.read(first, reading);
    reading.stage = &who;
    return function(std::move(sample));
  } catch (const std::exception&) {
    std::rethrow_exception(
        detail::at_sample(content, first.id, reading.stage, "looked at for its columns"));
  }
}

std::vector<Column> columns_like(const Sample& sample, const std::vector<Column>& before) {
  std::vector<Column> columns;
  for (size_t c = 0; c < sample.columns.size(); ++c) {
    const Array& value = sample.columns[c];
    columns.push_back({.name = c < before.size() ? before[c].name : fmt::format("column{}", c),
                       .dtype = value.dtype(),
                       .shape = value.shape()});
  }
  return columns;
}

// By the number of samples in each, the first of each, and the end.
std::shared_ptr<const std::vector<int64_t>> firsts_of(const std::vector<int64_t>& counts) {
  auto first = std::make_shared<std::vector<int64_t>>(1, 0);
  for (int64_t count : counts) first->push_back(first->back() + count);
  return first;
}

Array row_of(const Array& whole, int64_t row) {
  const Array one = whole.rows(row, row + 1);
  return Array::view(one.data(), one.dtype(), {one.shape().begin() + 1, one.shape().end()},
                     one.owner());
}

int64_t rows_in(const Sample& sample) {
  const auto first_size = [](const Array& value) {
    return value.shape().empty() ? -1 : value.shape()[0];
  };
  for (const Array& value : sample.columns)
    if (first_size(value) < 0 || first_size(value) != first_size(sample.columns[0]))
      throw DataError(fmt::format("columns are {} and {}, expected the same first size",
                                  sample.columns[0].to_string(), value.to_string()));
  return first_size(sample.columns.at(0));
}

std::vector<Sample> rows_of(const Sample& sample) {
  std::vector<Sample> rows(static_cast<size_t>(rows_in(sample)));
  for (size_t i = 0; i < rows.size(); ++i)
    for (const Array& value : sample.columns)
      rows[i].columns.push_back(row_of(value, static_cast<int64_t>(i)));
  return rows;
}

}  // namespace

Dataset::Dataset(std::shared_ptr<const Source> source) {
  if (!source) throw UsageError("a dataset needs a source, got a null pointer");
  view_ = detail::all_rows(source->num_rows());
  content_ = detail::content_of(std::move(source));
}

void Dataset::require_no_batch() const {
  if (batching_)
    throw UsageError(
        "an operator of a dataset comes before its batch(), which is the last one; unbatch() takes "
        "it back");
}

Dataset Dataset::then(std::shared_ptr<const detail::View> view) const {
  require_no_batch();
  return {content_, std::move(view)};
}

Dataset Dataset::of(std::shared_ptr<const detail::Content> content) const {
  require_no_batch();
  return {std::move(content), view_};
}

Dataset Dataset::shuffle(ShuffleOptions options) const {
  if (content_->sequential() && options.window == 0)
    throw UsageError(
        "shuffle() of what comes from a generator: only the next few samples can be mixed; say how "
        "many, as shuffle({.window = 10000})");
  return then(detail::shuffled(view_, options));
}

Dataset Dataset::repeat(int64_t count) const { return then(detail::repeated(view_, count)); }

Dataset Dataset::shard(int64_t index, int64_t count) const {
  if (index == kShardHint && count == kShardHint) return then(detail::hinted(view_));
  return then(detail::sharded(view_, index, count));
}

// The same batching of other views.
Dataset Dataset::viewed(std::shared_ptr<const detail::View> view) const {
  const Dataset next(content_, std::move(view));
  return batching_ ? next.batched(*batching_) : next;
}

Dataset Dataset::shard_files(int64_t index, int64_t count) const {
  if (count < 1 || index < 0 || index >= count)
    throw UsageError(fmt::format(
        "shard_files(index {}, count {}): expected an index below the count", index, count));
  const auto source = content_->source();
  const auto first = source && content_->size() == source->num_rows()
                         ? source->first_rows_of_files()
                         : std::vector<int64_t>();
  if (std::ssize(first) < count)
    throw UsageError(fmt::format(
        "shards of files: {} shards of {}; share out samples instead (auto_shard data)", count,
        first.empty() ? "samples that do not lie in files one after another"
                      : fmt::format("{} files", first.size())));
  auto flags = std::make_shared<std::vector<uint8_t>>(static_cast<size_t>(content_->size()));
  for (size_t file = 0; file < first.size(); ++file) {
    const auto begin = static_cast<size_t>(first[file]);
    const size_t end =
        file + 1 < first.size() ? static_cast<size_t>(first[file + 1]) : flags->size();
    const bool own = static_cast<int64_t>(file) % count == index;
    std::fill(flags->begin() + static_cast<int64_t>(begin),
              flags->begin() + static_cast<int64_t>(end), own ? 1 : 0);
  }
  return viewed(detail::restricted(view_, std::move(flags)));
}

Dataset Dataset::shard_where_hinted(int64_t index, int64_t count) const {
  auto view = detail::with_hints(view_, index, count);
  if (!view)
    throw UsageError(
        "auto_shard hint: there is no shard(kShardHint, kShardHint) in the dataset; put it where "
        "the "
        "workers' parts are to be taken");
  return viewed(std::move(view));
}

Dataset Dataset::take(int64_t count) const { return then(detail::taken(view_, count)); }

Dataset Dataset::skip(int64_t count) const { return then(detail::skipped(view_, count)); }

Dataset Dataset::map(TransformHandle transform) const {
  return of(detail::mapped(content_, std::move(transform)));
}

Dataset Dataset::map(std::function<Sample(Sample, Draw&)> function, MapOptions options) const {
  require_no_batch();
  if (options.columns.empty()) {
    Draw draw(0);
    const Sample sample = tried(*content_, *view_, options.name,
                                [&](Sample in) { return function(std::move(in), draw); });
    options.columns = columns_like(sample, content_->columns());
  }
  return map(std::make_shared<FunctionMap>(std::move(function), std::move(options), true));
}

Dataset Dataset::map(std::function<Sample(Sample)> function, MapOptions options) const {
  require_no_batch();
  if (options.columns.empty()) {
    const Sample sample = tried(*content_, *view_, options.name, function);
    options.columns = columns_like(sample, content_->columns());
  }
  return map(std::make_shared<FunctionMap>(
      [function = std::move(function)](Sample in, Draw&) { return function(std::move(in)); },
      std::move(options), false));
}

Dataset Dataset::filter(std::function<bool(const Sample&)> keeps, const std::string& name) const {
  require_no_batch();
  detail::require_same_samples(*view_, name + "()");
  const auto keys =
      detail::keys_of(*content_, *view_, 1, name,
                      [&](const Sample& sample, int64_t* key) { *key = keeps(sample) ? 1 : 0; });
  return then(
      detail::kept(view_, std::make_shared<const std::vector<uint8_t>>(keys.begin(), keys.end())));
}

Dataset Dataset::flat_map(std::function<std::vector<Sample>(Sample)> parts,
                          MapOptions options) const {
  require_no_batch();
  if (options.name == "map") options.name = "flat_map";
  detail::require_same_samples(*view_, options.name + "()");
  if (options.columns.empty()) {
    const auto first = tried(*content_, *view_, options.name, parts);
    if (first.empty())
      throw UsageError(
          "flat_map: the first sample gives none, so that what comes out is not known; say it in "
          "MapOptions::columns");
    options.columns = columns_like(first[0], content_->columns());
  }
  const auto counts = detail::keys_of(
      *content_, *view_, 1, options.name,
      [&](const Sample& sample, int64_t* key) { *key = std::ssize(parts(sample)); });
  const auto first = firsts_of(counts);
  return {detail::unfolded(content_, options.name, options.columns, std::move(parts), first),
          detail::unfolded(view_, first)};
}

Dataset Dataset::unbatch() const {
  if (batching_) {
    if (!batching_->batches.empty() || batching_->sizes || !batching_->transforms.empty())
      throw UsageError(
          "unbatch() behind padded_batch(), bucket_by_length() or a map of whole batches, which "
          "make "
          "more than groups of the samples; leave both out");
    const Dataset plain(content_, view_);
    return batching_->drop_remainder ? plain.take(batching_->num_samples) : plain;
  }
  std::vector<Column> columns = content_->columns();
  int64_t rows = -2;
  for (Column& column : columns) {
    if (column.shape.empty())
      throw UsageError(fmt::format("unbatch(): column {} has no rows to part", column.to_string()));
    rows = rows == -2 || rows == column.shape[0] ? column.shape[0] : kAnySize;
    column.shape.erase(column.shape.begin());
  }
  if (rows < 0) detail::require_same_samples(*view_, "unbatch() where sizes vary");
  const auto counts =
      rows >= 0
          ? std::vector<int64_t>(static_cast<size_t>(content_->size()), rows)
          : detail::keys_of(*content_, *view_, 1, "unbatch()",
                            [](const Sample& sample, int64_t* key) { *key = rows_in(sample); });
  const auto first = firsts_of(counts);
  return {detail::unfolded(content_, "unbatch", columns, rows_of, first),
          detail::unfolded(view_, first)};
}

Dataset Dataset::cache(int64_t most_bytes) const {
  return of(detail::cached(content_, most_bytes));
}

Dataset Dataset::cache(const std::filesystem::path& folder) const {
  return of(detail::cached(content_, folder));
}

std::pair<Dataset, Dataset> Dataset::split_last(double last_share) const {
  if (!(last_share > 0 && last_share < 1))
    throw UsageError(fmt::format("split of {}: expected a share above 0 and below 1", last_share));
  auto [rest, last] = detail::split(view_, last_share);
  const std::pair both(viewed(std::move(rest)), viewed(std::move(last)));
  for (const Dataset& part : {both.first, both.second})
    if (part.num_samples() == 0)
      throw UsageError(fmt::format(
          "split of {}: {} samples leave none for one of the parts; change the share, or use more "
          "samples",
          last_share, num_samples()));
  return both;
}

int64_t Dataset::num_samples() const {
  return batching_ ? batching_->num_samples : view_->num_samples;
}

const detail::Batching& Dataset::batching() const {
  if (!batching_) throw UsageError("the dataset has no batches: end it with .batch(n)");
  return *batching_;
}

int64_t Dataset::num_batches() const { return batching().num_batches; }

int64_t Dataset::global_batch_size() const { return batching_ ? batching_->size : 0; }

const std::vector<Column>& Dataset::columns() const {
  return batching_ ? batching_->columns : content_->columns();
}

const std::vector<std::string>& Dataset::classes() const { return content_->classes(); }

int64_t Dataset::num_classes() const { return static_cast<int64_t>(classes().size()); }

bool Dataset::sequential() const { return content_->sequential(); }

Epoch Dataset::epoch(EpochOptions options) const {
  const detail::Batching& how = batching();
  if (options.epoch < 0)
    throw UsageError(fmt::format("epoch {}: expected 0 or more", options.epoch));
  auto state = std::make_shared<detail::EpochState>();
  state->content = content_;
  state->batching = batching_;
  state->pass = {.epoch = options.epoch, .seed = options.seed};
  state->order = view_->order(state->pass);
  state->begins = detail::lay_out(how, state->order);
  // A step that is taken, the next one, and 16 that a loader computes ahead unless told.
  constexpr int64_t kBatchesAtOnce = 18;
  const int64_t reach =
      content_->sequential() ? detail::reach_of(state->order, kBatchesAtOnce * how.size) : 1;
  state->session = std::make_unique<detail::Session>(options.seed, reach);
  return Epoch(std::move(state));
}

}  // namespace tutti::data
