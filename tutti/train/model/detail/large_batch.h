/// What a LargeBatch does with a model and its recipe; not for users.
/// Thread rule: one thread, that of the model's strategy.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tutti/nn/graph.h"
#include "tutti/optim/recipe.h"
#include "tutti/strategy/modules/replicated.h"
#include "tutti/train/callbacks/schedules.h"
#include "tutti/train/model/large_batch.h"

namespace tutti::detail {

/// What compile() has made of it.
struct LargeBatchParts {
  LargeBatch options;
  optim::Rule rule;
  std::optional<RateSchedule> base{};  ///< rates of the base batch; unset: the rule's
  std::vector<std::string> words{};    ///< a line a part
};

/// The recipe, none of whose parameters of one dimension at most decays but by a group that says
/// so; `words`: a line about it.
optim::Recipe spared(const optim::Recipe& recipe, const NamedTensors& parameters,
                     std::string& words);

/// Writes 0 to the weights of the graph's last batch norms, in the local modules that have them,
/// where they are all 1. Returns a line about it.
std::string zero_last_norms(const std::optional<nn::Graph>& graph,
                            const ReplicatedModules& modules);

/// The rates of a training, and a line about each part of the recipe.
struct ScaledRate {
  RateSchedule rate;
  std::vector<std::string> words;
};
/// batch: samples of an update; epoch_steps: updates of an epoch.
ScaledRate scaled_rate(const LargeBatchParts& parts, int64_t batch, int64_t epoch_steps);

}  // namespace tutti::detail
