#include <algorithm>
#include <iterator>

#include "tutti/base/error.h"
#include "tutti/strategy/input/detail/input.h"
#include "tutti/train/watch/detail/watcher.h"

namespace tutti::detail {
namespace {

/// Who measures what, and where it cannot.
struct MeasureWatcher {
  bool Measures::* field;
  std::string (*why_not)(const World& world);  ///< "": it can be measured
  std::unique_ptr<StepWatcher> (*watch)(Optimizer& optimizer, int64_t batch);
};

constexpr MeasureWatcher kWatchers[] = {
    {&Measures::noise_scale, why_no_noise_scale, watch_noise_scale},
    {&Measures::gradient_norm, why_no_gradient_norm, watch_gradient_norm},
};
static_assert(std::ranges::equal(kMeasures, kWatchers, {}, &Measure::field, &MeasureWatcher::field),
              "each measure has its watcher, in the order of their columns");

}  // namespace

std::vector<int64_t> StepFacts::samples_by_replica() const {
  std::vector<int64_t> samples(static_cast<size_t>(world.num_replicas()), 0);
  for (int64_t number = first_batch; number < end_batch; ++number)
    for (int rank = 0; rank < world.num_replicas(); ++rank)
      samples[static_cast<size_t>(rank)] += share_of(data.batch_size(number), world, rank).size();
  return samples;
}

void require_measurable(const Measures& measures, const World& world) {
  for (const MeasureWatcher& watcher : kWatchers)
    if (const std::string why = watcher.why_not(world); measures.*watcher.field && !why.empty())
      throw UsageError("compile: " + why);
}

StepWatchers watchers_of(const Measures& measures, Optimizer& optimizer, int64_t batch) {
  StepWatchers watchers;
  for (const MeasureWatcher& watcher : kWatchers)
    if (measures.*watcher.field) watchers.push_back(watcher.watch(optimizer, batch));
  return watchers;
}

}  // namespace tutti::detail
