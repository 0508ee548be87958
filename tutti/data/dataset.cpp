#include "tutti/data/dataset.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <tuple>

#include "tutti/base/error.h"
#include "tutti/data/detail/order.h"

namespace tutti::data {

namespace {

// Rounded up, without a sum that could overflow.
int64_t batches_of(int64_t samples, int64_t batch) {
  return samples / batch + (samples % batch != 0 ? 1 : 0);
}

}  // namespace

namespace detail {

struct EpochState {
  std::shared_ptr<const Source> source;
  std::vector<int64_t> order;
  int64_t batch = 0;

  int64_t num_samples() const { return static_cast<int64_t>(order.size()); }
  int64_t num_batches() const { return batches_of(num_samples(), batch); }
};

}  // namespace detail

namespace {

void require_rank(int64_t global_size, int replicas, int rank, std::span<const double> weights) {
  if (global_size < 0 || replicas < 1 || rank < 0 || rank >= replicas)
    throw UsageError(fmt::format(
        "share of replica {} of {} in a batch of {}: expected 0 <= rank < replicas, size >= 0",
        rank, replicas, global_size));
  if (weights.empty()) return;
  const bool good = std::all_of(weights.begin(), weights.end(),
                                [](double weight) { return std::isfinite(weight) && weight >= 0; });
  const double total = std::accumulate(weights.begin(), weights.end(), 0.0);
  if (!good || !(total > 0) || !std::isfinite(total) ||
      weights.size() != static_cast<size_t>(replicas))
    throw UsageError(
        fmt::format("weights of shares [{}]: expected {} finite numbers >= 0, not all of them 0",
                    fmt::join(weights, ", "), replicas));
}

// Largest remainder: everybody gets the whole part, the largest fractions one more.
std::vector<int64_t> weighted_sizes(int64_t global_size, std::span<const double> weights) {
  const double total = std::accumulate(weights.begin(), weights.end(), 0.0);
  std::vector<int64_t> sizes;
  std::vector<double> fractions;
  int64_t left = global_size;
  for (double weight : weights) {
    const double exact = static_cast<double>(global_size) * (weight / total);
    // Rounding may lift a product over its true value, never by a whole sample; `left` caps it.
    sizes.push_back(std::min(left, static_cast<int64_t>(exact)));
    fractions.push_back(weight > 0 ? exact - std::floor(exact) : -1);
    left -= sizes.back();
  }
  std::vector<size_t> ranks(weights.size());
  std::iota(ranks.begin(), ranks.end(), size_t{0});
  std::stable_sort(ranks.begin(), ranks.end(),
                   [&](size_t a, size_t b) { return fractions[a] > fractions[b]; });
  for (size_t i = 0; left > 0; i = (i + 1) % ranks.size()) {
    if (weights[ranks[i]] <= 0) continue;
    ++sizes[ranks[i]];
    --left;
  }
  return sizes;
}

}  // namespace

Share share(int64_t global_size, int replicas, int rank, std::span<const double> weights) {
  require_rank(global_size, replicas, rank, weights);
  if (weights.empty()) {
    const int64_t each = global_size / replicas;
    const int64_t more = global_size % replicas;
    const int64_t begin = rank * each + std::min<int64_t>(rank, more);
    return {begin, begin + each + (rank < more ? 1 : 0)};
  }
  const auto sizes = weighted_sizes(global_size, weights);
  const int64_t begin = std::accumulate(sizes.begin(), sizes.begin() + rank, int64_t{0});
  return {begin, begin + sizes[static_cast<size_t>(rank)]};
}

int64_t Epoch::num_samples() const noexcept { return state_->num_samples(); }

int64_t Epoch::num_batches() const noexcept { return state_->num_batches(); }

int64_t Epoch::batch_size(int64_t step) const { return static_cast<int64_t>(rows(step).size()); }

std::span<const int64_t> Epoch::rows(int64_t step) const {
  if (step < 0 || step >= num_batches())
    throw UsageError(fmt::format("batch {} of an epoch of {} batches", step, num_batches()));
  const int64_t begin = step * state_->batch;
  const int64_t size = std::min(state_->batch, num_samples() - begin);
  return std::span(state_->order).subspan(static_cast<size_t>(begin), static_cast<size_t>(size));
}

namespace {

// A source of a user's own may end before it said.
void require_all_rows(const Source& source, const Batch& batch, int64_t rows, int64_t step) {
  const auto require = [&](int64_t got, const std::string& where) {
    if (got != rows)
      throw DataError(fmt::format(
          "batch {}: gather() of the source gave {} rows{}, expected {}, of a source that says it "
          "has {} rows",
          step, got, where, rows, source.num_rows()));
  };
  require(batch.size, "");
  if (batch.columns.size() != source.columns().size())
    throw DataError(fmt::format("batch {}: gather() of the source gave {} columns, expected {}",
                                step, batch.columns.size(), source.columns().size()));
  for (size_t i = 0; i < batch.columns.size(); ++i)
    require(batch.columns[i].shape().empty() ? 0 : batch.columns[i].shape()[0],
            fmt::format(" in column \"{}\"", source.columns()[i].name));
}

}  // namespace

Batch Epoch::part(int64_t step, Share share) const {
  const auto whole = rows(step);
  if (share.begin < 0 || share.begin > share.end || share.end > static_cast<int64_t>(whole.size()))
    throw UsageError(fmt::format("samples [{}, {}) of batch {}, which has {}", share.begin,
                                 share.end, step, whole.size()));
  Batch batch = state_->source->gather(
      whole.subspan(static_cast<size_t>(share.begin), static_cast<size_t>(share.size())));
  require_all_rows(*state_->source, batch, share.size(), step);
  return batch;
}

Batch Epoch::batch(int64_t step) const { return part(step, {0, batch_size(step)}); }

Dataset::Dataset(std::shared_ptr<const Source> source) : source_(std::move(source)) {
  if (!source_) throw UsageError("a dataset needs a source, got a null pointer");
  view_ = detail::all_rows(source_->num_rows());
}

Dataset Dataset::then(std::shared_ptr<const detail::View> view) const {
  if (batch_ != 0)
    throw UsageError("a view of a dataset comes before its batch(), which is the last one");
  Dataset next = *this;
  next.view_ = std::move(view);
  return next;
}

Dataset Dataset::shuffle(ShuffleOptions options) const {
  return then(detail::shuffled(view_, options));
}

Dataset Dataset::repeat(int64_t count) const { return then(detail::repeated(view_, count)); }

Dataset Dataset::shard(int64_t index, int64_t count) const {
  return then(detail::sharded(view_, index, count));
}

Dataset Dataset::take(int64_t count) const { return then(detail::taken(view_, count)); }

std::pair<Dataset, Dataset> Dataset::split_last(double last_share) const {
  if (!(last_share > 0 && last_share < 1))
    throw UsageError(fmt::format("split of {}: expected a share above 0 and below 1", last_share));
  std::pair both(*this, *this);
  std::tie(both.first.view_, both.second.view_) = detail::split(view_, last_share);
  for (const Dataset& part : {both.first, both.second})
    if (part.num_samples() == 0)
      throw UsageError(fmt::format(
          "split of {}: {} samples leave none for one of the parts; change the share, or use more "
          "samples",
          last_share, num_samples()));
  return both;
}

Dataset Dataset::batch(int64_t global_size) const {
  if (global_size < 1)
    throw UsageError(fmt::format("batch({}): expected a global batch of 1 or more", global_size));
  Dataset next = *this;
  next.batch_ = global_size;
  return next;
}

int64_t Dataset::num_samples() const { return view_->num_samples; }

int64_t Dataset::num_batches() const {
  if (batch_ == 0) throw UsageError("the dataset has no batches: end it with .batch(n)");
  return batches_of(num_samples(), batch_);
}

int64_t Dataset::global_batch_size() const { return batch_; }

const std::vector<Column>& Dataset::columns() const { return source_->columns(); }

const std::vector<std::string>& Dataset::classes() const { return source_->classes(); }

int64_t Dataset::num_classes() const { return static_cast<int64_t>(classes().size()); }

Epoch Dataset::epoch(EpochOptions options) const {
  if (batch_ == 0) throw UsageError("the dataset has no batches: end it with .batch(n)");
  if (options.epoch < 0)
    throw UsageError(fmt::format("epoch {}: expected 0 or more", options.epoch));
  auto state = std::make_shared<detail::EpochState>();
  state->source = source_;
  state->order = view_->order({.epoch = options.epoch, .seed = options.seed});
  state->batch = batch_;
  return Epoch(std::move(state));
}

}  // namespace tutti::data
