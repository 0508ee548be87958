/// What the words after the flags of `tutti train` mean: schedules, callbacks, weights of classes.
/// All throw UsageError that begins with the flag. Without LibTorch.
/// Thread rule: the main thread alone.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "tutti/nn/graph.h"
#include "tutti/optim/loss_scale.h"
#include "tutti/strategy/choice/options.h"
#include "tutti/train/callbacks/callbacks.h"
#include "tutti/train/callbacks/schedules.h"
#include "tutti/train/metrics/metrics.h"
#include "tutti/train/model/large_batch.h"

namespace tutti::cli {

struct TrainFlags;

/// What --schedule takes.
const std::vector<std::string>& schedule_names();
/// Of --schedule and --warm-up, for a training of `steps` updates; none without them. It begins
/// with, and one_cycle reaches, the optimizer's rate.
std::optional<RateSchedule> schedule_from(const TrainFlags& flags, int64_t steps);

/// Names of metrics for classes, as --metrics takes them.
const std::vector<std::string>& metric_words();
/// Those for a number, each in short and as History names it.
const std::vector<std::string>& number_metric_words();
/// accuracy, of text with perplexity before it, and those of --metrics; where a number is
/// predicted, mean_absolute_error, and those of --metrics in the target's own unit.
std::vector<Metric> metrics_from(const TrainFlags& flags);

std::optional<optim::LossScaling> loss_scaling_from(const TrainFlags& flags);
std::optional<LargeBatch> large_batch_from(const TrainFlags& flags);

/// By label, of --class-weight; `classes` are the names by label.
std::map<int64_t, double> class_weight_from(const TrainFlags& flags,
                                            const std::vector<std::string>& classes);

/// Those of --freeze.
std::vector<std::string> frozen_patterns(const TrainFlags& flags);
/// `graph` with the parameters of --freeze frozen.
nn::Graph frozen_by(const TrainFlags& flags, const nn::Graph& graph);

CheckpointOptions checkpoint_options(const TrainFlags& flags);

/// New callbacks, those that only watch first. The folders of their files are made.
Callbacks callbacks_from(const TrainFlags& flags);

/// A flag by which a worker ends or changes the training, and so needs all of them in a step; "":
/// there is none.
std::string deciding_flag(const TrainFlags& flags);

}  // namespace tutti::cli
