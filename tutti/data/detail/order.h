/// The order of samples, decided without looking at them: views of a list of sample numbers.
///
/// A dataset is a chain of views, each of which knows the one before it, over what it orders: the
/// samples 0 .. n-1 of a Content (content.h), or other datasets.
/// docs/design/sample_order.md says what decides the order and why. Thread rule: views are
/// immutable.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "tutti/data/dataset.h"

namespace tutti::data::detail {

/// Which pass over the samples: everything that the order may depend on.
struct Pass {
  int64_t epoch = 0;
  uint64_t seed = 0;  ///< for shuffles without a seed of their own
  bool operator==(const Pass&) const = default;
};

/// One sample of one pass: what its content may depend on, beside the seed.
struct Ref {
  int64_t id = 0;     ///< its number in the Content
  int64_t epoch = 0;  ///< the pass over the Content, in which each sample comes at most once
};

/// The samples of a pass, one after another.
struct Order {
  std::vector<int64_t> ids;
  std::vector<int64_t> epochs;  ///< by place; empty: all are of `epoch`
  int64_t epoch = 0;

  int64_t size() const noexcept { return static_cast<int64_t>(ids.size()); }
  int64_t epoch_at(size_t place) const { return epochs.empty() ? epoch : epochs[place]; }
  Ref at(size_t place) const { return {ids[place], epoch_at(place)}; }
  /// The same samples, place i from places[i].
  Order picked(const std::vector<int64_t>& places) const;
  /// Those of `other` behind them, their ids moved on by `offset`.
  void append(const Order& other, int64_t offset = 0);
};

struct View;
using ViewHandle = std::shared_ptr<const View>;

struct View {
  explicit View(int64_t samples) : num_samples(samples) {}
  virtual ~View() = default;

  /// num_samples samples in the order of this pass.
  virtual Order order(Pass pass) const = 0;

  /// Shuffles from the source up to here, this one included: each has a random stream of its own.
  virtual int num_shuffles() const = 0;

  /// The view under this one; null when this is the lowest.
  virtual ViewHandle below() const = 0;
  /// This view of other samples than below()'s.
  virtual ViewHandle over(const ViewHandle& other) const = 0;
  /// True when it keeps the order of the samples, each at most once.
  virtual bool keeps_order() const = 0;

  /// True when every pass has the same samples in the same order.
  virtual bool same_order() const = 0;
  /// True when every pass has the same samples, as often, in an order of its own perhaps.
  virtual bool same_samples() const = 0;
  /// It says which samples there are, by looking at each: so of both parts of a split.
  virtual bool by_sample() const { return false; }

  const int64_t num_samples;
};

/// An epoch's order is a list in memory: what is beyond this is a slip of the keyboard. Throws
/// UsageError that says what `words` is.
void require_list(int64_t samples, const std::string& words);

/// Throws UsageError where passes have different samples; `who`: "filter()".
void require_same_samples(const View& view, const std::string& who);

/// True when each sample comes at most once, in the same order in every pass.
bool keeps_each_once(const View& view);

/// `shuffles`, `each_once`: of the orders inside, where the samples are made of others' orders.
ViewHandle all_rows(int64_t num_rows, int shuffles = 0, bool each_once = true);
ViewHandle shuffled(const ViewHandle& before, ShuffleOptions options);
ViewHandle repeated(const ViewHandle& before, int64_t count);
ViewHandle sharded(const ViewHandle& before, int64_t index, int64_t count);
ViewHandle taken(const ViewHandle& before, int64_t count);
ViewHandle skipped(const ViewHandle& before, int64_t count);
/// Those whose flag is set, by id; of a view that has the same samples in every pass.
ViewHandle kept(const ViewHandle& before, std::shared_ptr<const std::vector<uint8_t>> flags);
/// The parts of each sample: they are numbered through, first[id] is the first of `id`.
ViewHandle unfolded(const ViewHandle& before, std::shared_ptr<const std::vector<int64_t>> first);

/// All here; another view once it is told whose they are.
ViewHandle hinted(const ViewHandle& before);
/// The same views with `index` of `count` shards in the place of each hint; null without one.
ViewHandle with_hints(const ViewHandle& view, int64_t index, int64_t count);
/// The same views of the flagged ids alone.
ViewHandle restricted(const ViewHandle& view, std::shared_ptr<const std::vector<uint8_t>> flags);

/// The rest and the last share: Dataset::split_last().
std::pair<ViewHandle, ViewHandle> split(const ViewHandle& view, double last_share);

}  // namespace tutti::data::detail
