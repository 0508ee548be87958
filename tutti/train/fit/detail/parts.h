/// What a fit() itself keeps in checkpoints, and who watches its steps; not for users. Thread rule:
/// the thread of fit(), between runs.
#pragma once

#include <memory>
#include <string>

#include "tutti/data/share_schedule.h"
#include "tutti/train/fit/detail/callback_runner.h"
#include "tutti/train/model/detail/model_state.h"
#include "tutti/train/watch/detail/watcher.h"

namespace tutti::detail {

std::unique_ptr<Kept> kept_history(History& history);
/// Of the epoch that goes on, by local replica: none where it has not begun.
std::unique_ptr<Kept> kept_totals(Model::State& model, std::vector<Totals>& each);
/// With the weights that a callback remembers; what ended the training before ends it again.
std::unique_ptr<Kept> kept_callbacks(CallbackRunner& callbacks, Model::State& model);

/// Moves the replicas' shares of a batch where they do (moving_shares.h): by speed, as far as the
/// batch norms of the model allow. All must outlive it.
std::unique_ptr<StepWatcher> watch_shares(Model::State& model, const data::Dataset& train,
                                          const FitOptions& options);
/// Warns where the threads of a lone replica do not get their cores (core_watch.h).
std::unique_ptr<StepWatcher> watch_cores(int threads);
/// Makes this worker slow.
std::unique_ptr<StepWatcher> watch_slow_worker(const SlowWorker& slow, uint64_t seed,
                                               Optimizer& optimizer);

/// Changes of shares that a checkpoint has kept. DataError for what is no such list.
data::ShareSchedule shares_in(const CheckpointManifest& manifest, const std::string& what);

}  // namespace tutti::detail
