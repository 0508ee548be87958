/// The order of samples, decided without looking at data: views of a list of rows.
///
/// A dataset is a chain of views, each of which knows the one before it.
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
};

struct View;
using ViewHandle = std::shared_ptr<const View>;

struct View {
  explicit View(int64_t samples) : num_samples(samples) {}
  virtual ~View() = default;

  /// The rows of the source in the order of this pass; num_samples of them.
  virtual std::vector<int64_t> order(Pass pass) const = 0;

  /// Shuffles from the source up to here, this one included: each has a random stream of its own.
  virtual int num_shuffles() const = 0;

  /// The view under this one; null when this is the source.
  virtual ViewHandle below() const = 0;
  /// This view of other samples than below()'s.
  virtual ViewHandle over(const ViewHandle& other) const = 0;
  /// True when it keeps the order of the samples, each at most once.
  virtual bool keeps_order() const = 0;

  const int64_t num_samples;
};

ViewHandle all_rows(int64_t num_rows);
ViewHandle shuffled(const ViewHandle& before, ShuffleOptions options);
ViewHandle repeated(const ViewHandle& before, int64_t count);
ViewHandle sharded(const ViewHandle& before, int64_t index, int64_t count);
ViewHandle taken(const ViewHandle& before, int64_t count);

/// The rest and the last share: Dataset::split_last().
std::pair<ViewHandle, ViewHandle> split(const ViewHandle& view, double last_share);

}  // namespace tutti::data::detail
