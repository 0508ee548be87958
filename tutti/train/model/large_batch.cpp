// The recipe for large batches: what becomes of rates, groups and initial values, in words too.
#include "tutti/train/model/detail/large_batch.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <cmath>
#include <variant>

#include "tutti/base/error.h"
#include "tutti/base/typed.h"
#include "tutti/nn/residual.h"
#include "tutti/sync/tensors.h"

namespace tutti {
namespace {

void require_field(bool good, const char* field, const auto& value, std::string_view range) {
  if (!good)
    throw UsageError(
        fmt::format("large_batch: {} = {} is out of range; expected {}", field, value, range));
}

}  // namespace

void require_valid(const LargeBatch& options) {
  require_field(options.base >= 1, "base", options.base, "1 sample or more");
  require_field(std::isfinite(options.base_rate) && options.base_rate >= 0, "base_rate",
                options.base_rate, "a finite number > 0, or 0 for the optimizer's or schedule's");
  require_field(fits_float32(options.base_rate), "base_rate", options.base_rate, kFloat32Range);
  require_field(options.warm_up.epochs >= 0, "warm_up.epochs", options.warm_up.epochs, "0 or more");
  require_field(options.warm_up.steps >= 0, "warm_up.steps", options.warm_up.steps, "0 or more");
}

namespace detail {
namespace {

double weight_decay_of(const optim::Rule& rule) {
  return std::visit(
      [](const auto& options) {
        if constexpr (requires { options.weight_decay; })
          return options.weight_decay;
        else
          return 0.0;
      },
      rule.options());
}

BatchScaling scaling_of(const LargeBatchParts& parts) {
  const auto name = parts.rule.name();
  const bool linear = name == "sgd" || name == "lars";
  return parts.options.scaling.value_or(linear ? BatchScaling::linear : BatchScaling::square_root);
}

std::string scaling_words(const LargeBatchParts& parts, int64_t batch, double factor,
                          const RateSchedule& base) {
  const bool linear = scaling_of(parts) == BatchScaling::linear;
  return fmt::format(
      "large batch: a step has {} samples, {:.4g} times the {} that the base rate suits; rate "
      "{:.4g} x {:.4g} = {:.4g} ({} scaling{}{})",
      batch, static_cast<double>(batch) / static_cast<double>(parts.options.base),
      parts.options.base, base(0), factor, base(0) * factor, linear ? "linear" : "square root",
      parts.options.scaling ? "" : fmt::format(", as {} wants it", parts.rule.name()),
      parts.base ? fmt::format("; later by {}", base.name()) : "");
}

std::string warm_up_words(int64_t steps, double factor) {
  if (factor <= 1) return "large batch: warm-up: none, the rate does not grow";
  if (steps == 0) return "large batch: warm-up: none was asked for";
  return fmt::format("large batch: warm-up: in {} steps the rate grows to {:.4g} times the base's",
                     steps, factor);
}

std::string layers_words(const optim::Rule& rule) {
  return rule.measures()
             ? fmt::format("large batch: each tensor has a rate of its own, by {}", rule.name())
             : fmt::format(
                   "large batch: all tensors have one rate; lars and lamb give each its own, {} "
                   "does not",
                   rule.name());
}

// Whose weight it is, and of which of the local modules.
std::vector<at::Tensor> weights_named(const ReplicatedModules& modules, const std::string& name) {
  std::vector<at::Tensor> found;
  for (int local = 0; local < modules.size(); ++local)
    for (const auto& [own, tensor] : unique_parameters(*modules.module(local)))
      if (own == name) found.push_back(tensor);
  return found;
}

}  // namespace

optim::Recipe spared(const optim::Recipe& recipe, const NamedTensors& parameters,
                     std::string& words) {
  const double decay = weight_decay_of(recipe.rule());
  if (decay == 0) {
    words = fmt::format("large batch: weight decay: {} has none, so that none is to be spared",
                        recipe.rule().name());
    return recipe;
  }
  std::vector<optim::Group> groups;
  int64_t elements = 0;
  for (const auto& [name, tensor] : parameters) {
    if (tensor.dim() > 1) continue;
    const optim::Group* const own = recipe.group_of(name);
    if (own != nullptr && own->weight_decay) continue;
    groups.push_back({.pattern = name,
                      .learning_rate_factor = own != nullptr ? own->learning_rate_factor : 1,
                      .weight_decay = 0});
    elements += tensor.numel();
  }
  words = fmt::format(
      "large batch: weight decay {:.4g}: not of {} of {} parameters, norms and biases ({} "
      "elements)",
      decay, groups.size(), parameters.size(), elements);
  groups.insert(groups.end(), recipe.groups().begin(), recipe.groups().end());
  return {recipe.rule(), recipe.clip(), std::move(groups)};
}

std::string zero_last_norms(const std::optional<nn::Graph>& graph,
                            const ReplicatedModules& modules) {
  if (!graph)
    return "large batch: batch norms at 0: none, the model is no graph that would show its blocks";
  const at::NoGradGuard no_grad;
  std::vector<std::string> zeroed;
  std::vector<std::string> kept;
  for (const int place : nn::last_batch_norms(*graph)) {
    const nn::Node& node = graph->nodes()[static_cast<size_t>(place)];
    const auto weights = weights_named(modules, node.name + ".weight");
    const bool fresh =
        !weights.empty() && std::ranges::all_of(weights, [](const at::Tensor& weight) {
          return weight.requires_grad() && weight.eq(1).all().item<bool>();
        });
    (fresh ? zeroed : kept).push_back(node.name);
    if (fresh)
      for (at::Tensor weight : weights) weight.zero_();
  }
  std::string words =
      zeroed.empty()
          ? "large batch: batch norms at 0: none, no residual block ends with a fresh one"
          : fmt::format(
                "large batch: batch norms at 0: {}, the last one of each residual block: {}",
                zeroed.size(), fmt::join(zeroed, ", "));
  if (!kept.empty())
    words += fmt::format("; {} stay as they are, frozen, trained or loaded before",
                         fmt::join(kept, ", "));
  return words;
}

ScaledRate scaled_rate(const LargeBatchParts& parts, int64_t batch, int64_t epoch_steps) {
  const double rate =
      parts.options.base_rate > 0 ? parts.options.base_rate : parts.rule.learning_rate();
  const RateSchedule base = parts.base ? *parts.base : schedules::constant(rate);
  const double factor = scaling_of(parts) == BatchScaling::linear
                            ? schedules::linear_scaling(1, parts.options.base, batch)
                            : schedules::square_root_scaling(1, parts.options.base, batch);
  const int64_t asked = parts.options.warm_up.epochs * epoch_steps + parts.options.warm_up.steps;
  const int64_t steps = factor > 1 ? asked : 0;
  ScaledRate scaled{schedules::scaled(base, factor, steps),
                    {scaling_words(parts, batch, factor, base), warm_up_words(steps, factor),
                     layers_words(parts.rule)}};
  scaled.words.insert(scaled.words.end(), parts.words.begin(), parts.words.end());
  scaled.words.push_back(fmt::format(
      "large batch: momentum: no correction is needed, {} keeps no sum that has the rate in it",
      parts.rule.name()));
  return scaled;
}

}  // namespace detail
}  // namespace tutti
