/// StepWatcher: what looks at the steps of a fit() beside training, with what it finds and keeps;
/// not for users. Thread rule: between runs on the thread of fit(), but in a step on those of the
/// replicas, and after_step() on that of replica 0.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "tutti/base/deadline.h"
#include "tutti/data/dataset.h"
#include "tutti/strategy/choice/measures.h"
#include "tutti/strategy/modules/replicated.h"
#include "tutti/sync/world.h"
#include "tutti/train/report/history.h"
#include "tutti/train/report/progress.h"
#include "tutti/train/watch/detail/kept.h"

namespace tutti::detail {

/// A batch of which a replica computes its part.
struct WatchedBatch {
  int64_t epoch = 0;
  int64_t batch = 0;
  TimePoint begin{};
};

/// A step that was taken.
struct StepFacts {
  const data::Epoch& data;
  const World& world;
  int64_t epoch = 0;
  int64_t first_batch = 0;
  int64_t end_batch = 0;  ///< several where their gradients are added up

  std::vector<int64_t> samples_by_replica() const;
};

class StepWatcher {
 public:
  virtual ~StepWatcher() = default;

  /// Before steps_until_pause() steps, or fewer. Returns a line for people; "": nothing to say.
  virtual std::string before_steps() { return ""; }
  virtual int64_t steps_until_pause() const { return std::numeric_limits<int64_t>::max(); }

  // ---- in a step, by each replica ----
  virtual void batch_begins() {}
  virtual void forward_begins() {}                    ///< its data is there
  virtual void forward_ended(const WatchedBatch&) {}  ///< backward is still to come
  virtual void update_ended() {}

  /// Of this worker.
  virtual void after_step(const StepFacts&) {}

  /// After an epoch: columns of History, quantities for callbacks.
  virtual NamedValues values() const { return {}; }
  /// At the end of fit(): adds to `history` what it has found, and returns a line for people.
  virtual std::string end(History&) { return ""; }

  /// What checkpoints keep of it, for as long as it lives; null: nothing.
  virtual std::unique_ptr<Kept> kept() { return nullptr; }
};

using StepWatchers = std::vector<std::unique_ptr<StepWatcher>>;

/// Throws UsageError where one of the measures could say nothing in this world.
void require_measurable(const Measures& measures, const World& world);

/// Whoever measures what is asked for, in the order of kMeasures. Collective over workers.
///
/// optimizer  of the training, whose updates have `batch` samples
StepWatchers watchers_of(const Measures& measures, Optimizer& optimizer, int64_t batch);

/// For rows of the table in watchers.cpp.
std::unique_ptr<StepWatcher> watch_noise_scale(Optimizer& optimizer, int64_t batch);
std::string why_no_noise_scale(const World& world);
std::unique_ptr<StepWatcher> watch_gradient_norm(Optimizer& optimizer, int64_t batch);
std::string why_no_gradient_norm(const World& world);

}  // namespace tutti::detail
