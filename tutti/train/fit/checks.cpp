// What fit() refuses before its first step.
#include <fmt/format.h>
#include <torch/types.h>

#include <algorithm>

#include "tutti/base/error.h"
#include "tutti/base/log.h"
#include "tutti/base/suggest.h"
#include "tutti/exported/module.h"
#include "tutti/nn/collectives.h"
#include "tutti/strategy/choice/choice.h"
#include "tutti/strategy/modules/whole_model.h"
#include "tutti/strategy/moving_shares.h"
#include "tutti/sync/sparse_tables.h"
#include "tutti/sync/tensors.h"
#include "tutti/train/model/batch_norm_check.h"
#include "tutti/train/model/class_weight.h"
#include "tutti/train/model/detail/model_state.h"
#include "tutti/train/model/detail/placement.h"
#include "tutti/train/model/weight_average.h"

namespace tutti {
namespace {

constexpr int64_t kMostAccumulated = 1'000'000;

void check_options(const FitOptions& options) {
  const auto at_least = [](const char* what, int64_t value, int64_t least) {
    if (value < least) {
      throw UsageError(fmt::format("fit: {} is {}, must be {} or more", what, value, least));
    }
  };
  at_least("epochs", options.epochs, 1);
  at_least("max_steps", options.max_steps, 0);
  at_least("initial_epoch", options.initial_epoch, 0);
  at_least("steps_per_epoch", options.steps_per_epoch, 0);
  at_least("validation_freq", options.validation_freq, 1);
  if (options.accumulate < 1 || options.accumulate > kMostAccumulated)
    throw UsageError(fmt::format("fit: accumulate is {}, must be from 1 to {}", options.accumulate,
                                 kMostAccumulated));
  if (options.microbatches < 1 || options.microbatches > detail::kMostMicrobatches)
    throw UsageError(fmt::format("fit: microbatches is {}, must be from 1 to {}",
                                 options.microbatches, detail::kMostMicrobatches));
  if (options.initial_epoch >= options.epochs)
    throw UsageError(fmt::format("fit: initial_epoch is {}, must be below epochs, {}",
                                 options.initial_epoch, options.epochs));
  require_class_weight("fit: class_weight", options.class_weight, 0);
  if (options.verbose < 0 || options.verbose > 2) {
    throw UsageError(fmt::format("fit: verbose is {}, must be 0, 1 or 2", options.verbose));
  }
}

void check_against_data(const FitOptions& options, const data::Dataset& train) {
  const int64_t updates = detail::updates_of(train.num_batches(), options.accumulate);
  if (options.steps_per_epoch > updates)
    throw UsageError(fmt::format("fit: steps_per_epoch is {}, the dataset has {} {} an epoch",
                                 options.steps_per_epoch, updates,
                                 options.accumulate == 1 ? "batches" : "groups of batches"));
}

/// Labels that the model tells apart; 0: not known. One output may stand for anything.
int64_t known_classes(const std::optional<nn::Graph>& graph, const data::Dataset& train) {
  if (graph && !graph->output_shape().empty() && graph->output_shape().back() > 1)
    return graph->output_shape().back();
  return train.num_classes();
}

void require_labels(const std::string& what, const data::Column& labels) {
  if (!is_floating(labels.dtype) && (labels.shape.empty() || labels.shape == nn::Shape{1})) return;
  throw UsageError(fmt::format("fit: {} needs labels, an integer a sample; the dataset has {} {}",
                               what, name_of(labels.dtype), nn::to_string(labels.shape)));
}

/// class_weight needs one output, labels, and no other weights.
void check_class_weight(const data::Dataset& train, size_t num_inputs, size_t num_goals) {
  if (num_goals > 1)
    throw UsageError(fmt::format(
        "fit: class_weight is for models with one output, this one has {}; weigh samples by a last "
        "column, or name the output: .class_weights = {{{{\"NAME\", {{{{label, weight}}}}}}}}",
        num_goals));
  if (train.columns().size() > num_inputs + num_goals)
    throw UsageError(
        "fit: class_weight and weights of samples (the last column): give one of them");
  require_labels("class_weight", train.columns()[num_inputs]);
}

/// The same of the outputs that class_weights name.
void check_class_weights(const Model::State& model, const data::Dataset& train,
                         const FitOptions& options) {
  if (options.class_weights.empty()) return;
  const detail::Goals& goals = model.compiled->goals;
  const auto num_inputs = static_cast<size_t>(model.num_inputs);
  if (!options.class_weight.empty())
    throw UsageError("fit: class_weight and class_weights: give one of them");
  if (goals.size() == 1 && goals[0].name.empty())
    throw UsageError(
        "fit: class_weights are of outputs that compile() has named, this model has one loss; give "
        "class_weight");
  if (train.columns().size() > num_inputs + goals.size())
    throw UsageError(
        "fit: class_weights and weights of samples (the last column): give one of them");
  if (model.strategy.options().step_graph)
    throw UsageError("fit: class_weights with step_graph: a step graph has one weight a sample");
  std::vector<std::string> names;
  for (const detail::Goal& goal : goals) names.push_back(goal.name);
  for (const auto& [name, weights] : options.class_weights) {
    const auto found = std::ranges::find(names, name);
    if (found == names.end())
      throw UsageError("fit: class_weights: " + unknown_message("output", name, names));
    const auto number = static_cast<size_t>(found - names.begin());
    const std::string place = fmt::format("class_weights of {}", name);
    require_labels(place, train.columns()[num_inputs + number]);
    int64_t classes = 0;  // not known
    if (model.graph)
      if (const auto& shape = model.graph->shape_of(model.graph->outputs()[goals[number].place]);
          !shape.empty())
        classes = shape.back();
    require_class_weight("fit: " + place, weights, classes > 1 ? classes : 0);
  }
}

void require_something_to_train(const ReplicatedModules& modules) {
  const torch::nn::Module& module = *modules.module(0);
  std::vector<bool> trained;
  if (const WholeModel* const whole = modules.whole())  // a rank's own part may be frozen
    for (const WholeModel::Entry& entry : whole->parameters()) trained.push_back(entry.trained);
  else
    for (const auto& [name, tensor] : unique_parameters(module))
      trained.push_back(tensor.requires_grad());
  if (std::ranges::count(trained, true) > 0 || !tables_of(table_layers_of(module)).empty()) return;
  throw UsageError(fmt::format(
      "fit: all {} parameters of the model are frozen (requires_grad is false), so that "
      "nothing would be trained; set_requires_grad(true) those that should be",
      trained.size()));
}

void require_together(const Model::State& model, const FitOptions& options) {
  const detail::Compiled& compiled = *model.compiled;
  const bool in_parts = model.laid_out->in_parts();
  RecipeFacts recipe{.precision = std::string(name_of(compiled.precision)),
                     .scales_losses = compiled.optimizer.loss_scale().has_value(),
                     .counts_labels = detail::counts_labels(compiled.goals),
                     .meets_in_forward = nn::meets_in_forward(*model.modules.module(0))};
  if (const SparseTables* const tables = compiled.optimizer.tables())
    recipe.table = tables->specs().front().name;
  tutti::require_together(
      model.strategy.options(), recipe,
      {.accumulate = options.accumulate,
       .microbatches = options.microbatches,
       .in_parts = in_parts,
       .replaces_damaged = options.loader.on_bad.replace.has_value(),
       .slows = options.slow.has_value()},
      {.workers = model.strategy.world().processes(), .gpus = model.strategy.world().on_devices()});
  if (in_parts || options.microbatches > 1)
    model.laid_out->check_microbatches(options.microbatches);
}

void require_batch_norms(const Model::State& model, const data::Dataset& train,
                         const FitOptions& options, std::span<const double> shares) {
  if (const std::string why = model.objection_of_batch_norms(train, options, shares); !why.empty())
    throw UsageError("fit: " + why);
}

/// Whoever is to be measured computes by itself; and no share is nothing.
void check_shares(const Model::State& model, const data::Dataset& train,
                  const FitOptions& options) {
  const int64_t batch = std::min(train.global_batch_size(), train.num_samples());
  require_rows_for_all("fit", batch, model.strategy.world());
  const MovingShares* const moving = model.strategy.moving_shares();
  if (moving == nullptr) return;
  moving->require_rows("fit", batch);
  for (const data::SharesFrom& change : moving->schedule().changes)
    require_batch_norms(model, train, options, moving->schedule().at(change.step));
}

void warn_of_idle_replicas(const data::Dataset& train, const mesh::Topology& topology) {
  const int64_t batch = std::min(train.global_batch_size(), train.num_samples());
  int idle = 0;
  for (int replica = 0; replica < topology.num_replicas(); ++replica)
    if (data::share(batch, topology.num_replicas(), replica, topology.shares).size() == 0) ++idle;
  if (idle == 0 || !topology.chief) return;
  log_once("fit: replicas without samples", LogLevel::warning,
           "fit: {} of {} replicas have no sample in any step, since a global batch has {}; the "
           "weights are those of the others, but fewer replicas or a larger batch would be faster",
           idle, topology.num_replicas(), batch);
}

}  // namespace

data::Dataset Model::State::split_off_validation(const data::Dataset& train,
                                                 FitOptions& options) const {
  if (options.validation_split == 0) return train;
  tutti::require_together(strategy.options(), {},
                          {.splits_validation = true, .validates = options.validation.has_value()},
                          {.gpus = strategy.world().on_devices()});
  if (!(options.validation_split > 0 && options.validation_split < 1))
    throw UsageError(fmt::format("fit: validation_split is {}, must be above 0 and below 1",
                                 options.validation_split));
  auto [rest, last] = train.split_last(options.validation_split);
  options.validation = std::move(last);
  return rest;
}

void Model::State::check_fit(const data::Dataset& train, const FitOptions& options) {
  check_options(options);
  require_compiled("fit");
  require_something_to_train(modules);
  for (int local = 0; local < modules.size(); ++local)
    detail::require_one_device(*modules.module(local));
  check_data("fit", train, true);
  require_together(*this, options);
  check_shares(*this, train, options);
  warn_of_idle_replicas(train, strategy.world());
  check_against_data(options, train);
  if (!options.class_weight.empty())
    check_class_weight(train, static_cast<size_t>(num_inputs), compiled->goals.size());
  require_class_weight("fit: class_weight", options.class_weight, known_classes(graph, train));
  check_class_weights(*this, train, options);
  detail::weight_average_of(options.callbacks, modules);
  if (options.validation) require_test("fit, validation");
  if (options.validation) check_data("fit, validation", *options.validation, true);
  if (compiled->train_step && options.microbatches > 1)
    throw UsageError(fmt::format(
        "fit: microbatches is {}, and train_step is called with a replica's whole part of a batch; "
        "leave one of them out",
        options.microbatches));
  if (const auto* const known = exported(); known != nullptr && options.validation)
    known->require_evaluation();
  require_batch_norms(*this, train, options, strategy.world().shares);
}

std::string Model::State::objection_of_batch_norms(const data::Dataset& train,
                                                   const FitOptions& options,
                                                   std::span<const double> shares) const {
  if (!graph) return {};
  return objection_of_batch_norms_to(
      *graph, {.samples = train.num_samples(),
               .global_batch = train.global_batch_size(),
               .steps = options.max_steps > 0
                            ? std::min(options.max_steps, train.num_batches()) * options.accumulate
                            : train.num_batches(),
               .replicas = strategy.world().num_replicas(),
               .shares = shares});
}

}  // namespace tutti
