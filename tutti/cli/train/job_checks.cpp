// What the flags of a job ask of a model and of samples: checked before workers start.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "tutti/base/error.h"
#include "tutti/cli/fields.h"
#include "tutti/cli/run/server_flags.h"
#include "tutti/cli/train/job.h"
#include "tutti/cli/train/whole_flags.h"
#include "tutti/models/models.h"
#include "tutti/strategy/moving_shares.h"
#include "tutti/train/model/batch_norm_check.h"

namespace tutti::cli {
namespace {

constexpr const char* kRegression = "linear_regression";

}  // namespace

std::vector<ps::Variable> variables_of(const nn::Graph& graph) {
  std::vector<ps::Variable> variables;
  std::set<std::string> layers;
  for (const nn::Node& node : graph.nodes()) {
    if (!layers.insert(node.name).second) continue;
    for (const nn::Parameter& parameter : node.parameters)
      if (parameter.trainable)
        variables.push_back({nn::full_name(node, parameter), parameter.shape});
  }
  return variables;
}

nn::Graph model_of(const std::string& name, const std::vector<int64_t>& sample, int64_t classes) {
  const models::ImageOptions options{.classes = std::max<int64_t>(1, classes), .input = sample};
  std::string why;
  try {
    if (name != kRegression || classes == 0) return models::model_by_name(name, options);
    why = fmt::format("{}: predicts a number; the data has {} classes", name, classes);
  } catch (const UsageError& error) {
    why = error.what();
  }
  std::vector<std::string> others = models::models_for(options);
  if (classes > 0) std::erase(others, kRegression);
  throw UsageError(
      fmt::format("{}\n  for samples of {} there {}", why, data::shape_words(sample),
                  others.empty() ? "is no model" : fmt::format("are {}", fmt::join(others, ", "))));
}

void check_groups(const JobFlags& flags, const std::vector<ps::Variable>& variables) {
  if (const auto whole = whole_rule_from(flags.optimizer)) {
    std::vector<std::string> names;
    for (const ps::Variable& variable : variables) names.push_back(variable.name);
    return said_of("--optimizer-options", [&] { whole->require_fitting(names); });
  }
  const optim::Recipe recipe = recipe_from(flags.optimizer);
  for (const optim::Group& group : recipe.groups())
    if (std::ranges::none_of(variables, [&](const ps::Variable& variable) {
          return optim::fits(group.pattern, variable.name);
        }))
      throw UsageError(fmt::format(
          "--parameter-group {}: no parameter of {} has such a name; the first of its {} is {}",
          group.pattern, flags.model, variables.size(),
          variables.empty() ? "none" : variables.front().name));
}

nn::Graph model_for(const JobFlags& flags, const data::Dataset& dataset) {
  nn::Graph graph = model_of(flags.model, dataset.columns().at(0).shape, dataset.num_classes());
  check_groups(flags, variables_of(graph));
  return graph;
}

void check_placement(const JobFlags& flags, const std::vector<ps::Variable>& variables) {
  if (!flags.uses_servers()) return;
  try {
    ps::place(variables, served_options(flags.served).placement);
  } catch (const UsageError& error) {
    throw UsageError(fmt::format("--partition {}: {}", flags.served.partition, error.what()));
  }
}

std::string fit_default_batch(JobFlags& flags, const data::Dataset& train) {
  const bool typed = std::ranges::any_of(
      flags.typed, [](const std::string& flag) { return flag.starts_with("--batch-size "); });
  if (typed || flags.global_batch <= train.num_samples()) return "";
  const int replicas = num_replicas_of(flags);
  if (train.num_samples() < replicas)
    throw UsageError(fmt::format(
        "--replicas {}: there are {} training samples in {}, and each replica needs one of a batch",
        replicas, train.num_samples(), flags.data));
  flags.global_batch = train.num_samples();
  return fmt::format(
      "global batch: all {} samples, which are fewer than the usual {} (--batch-size says another)",
      train.num_samples(), JobFlags{}.global_batch);
}

void check_batch(const JobFlags& flags, const data::Dataset& train) {
  if (flags.global_batch > train.num_samples())
    throw UsageError(
        fmt::format("--batch-size {} is more than the {} training samples of {}; expected "
                    "{} or less",
                    flags.global_batch, train.num_samples(), flags.data, train.num_samples()));
}

void check_given_shares(const JobFlags& flags) {
  if (flags.shares.empty()) return;
  StrategyOptions given;
  take_shares(flags.shares, given);
  tutti::check_given_shares(given, num_replicas_of(flags), flags.global_batch);
}

void check_shares(const JobFlags& flags) {
  const int replicas = num_replicas_of(flags);
  if (flags.global_batch < replicas)
    throw UsageError(
        fmt::format("--batch-size {} is the global batch and is smaller than the {} "
                    "replicas that share it; expected {} or more",
                    flags.global_batch, replicas, replicas));
}

void check_batch_norm(const JobFlags& flags, const nn::Graph& graph, const data::Dataset& train,
                      int64_t steps) {
  const int replicas = num_replicas_of(flags);
  // Independent replicas see all samples each, as replicas that share so many times more would.
  const bool independent = flags.strategy == "independent";
  require_batch_norm_input(
      "--batch-size", graph,
      {.samples = train.num_samples() * (independent ? replicas : 1),
       .global_batch = flags.global_batch - (independent ? flags.global_batch % replicas : 0),
       .steps = steps,
       .replicas = replicas});
}

}  // namespace tutti::cli
