#include "tutti/train/model/detail/settings.h"

#include <ATen/Context.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <variant>

#include "tutti/base/error.h"
#include "tutti/base/sha256.h"
#include "tutti/sync/replicated/whole_rules.h"
#include "tutti/train/losses/detail/reads_labels.h"

namespace tutti::detail {
namespace {

constexpr int64_t kFirst = 8;

std::string rule_words(const optim::Rule& rule) {
  std::string words(rule.name());
  const auto add = [&](const char* field, auto value) {
    if (value != decltype(value){} || !optim::is_later_field(field))
      words += fmt::format(" {} {}", field, value);
  };
  std::visit([&](const auto& options) { optim::visit_fields(options, add); }, rule.options());
  return words;
}

}  // namespace

std::string optimizer_words(const OptimizerChoice& choice) {
  const auto* const recipe = std::get_if<optim::Recipe>(&choice);
  if (recipe == nullptr) {
    const auto* const whole = whole_rule_of(std::get<TorchOptimizerFactory>(choice));
    return whole == nullptr ? "a torch optimizer" : whole->words();
  }
  const auto& [value, norm, global_norm] = recipe->clip();
  std::string words = fmt::format("{}, clipped by value {}, norm {}, global_norm {}",
                                  rule_words(recipe->rule()), value, norm, global_norm);
  for (const auto& [pattern, learning_rate_factor, weight_decay] : recipe->groups())
    words += fmt::format(", group {} by {}{}", pattern, learning_rate_factor,
                         weight_decay ? fmt::format(" weight_decay {}", *weight_decay) : "");
  return words;
}

std::string goal_words(const Goal& goal) {
  std::vector<std::string> metrics;
  for (const Metric& metric : goal.metrics)
    metrics.push_back(metric.name() + (metric.is_weighted() ? " by weights of samples" : ""));
  return fmt::format("{}{} times {}, metrics [{}]", goal.name.empty() ? "" : goal.name + ": ",
                     goal.loss.name(), goal.weight, fmt::join(metrics, ", "));
}

std::vector<double> rates_of(const std::optional<RateSchedule>& schedule) {
  if (!schedule) return {};
  std::vector<double> rates;
  try {
    rates.push_back((*schedule)(0));
    for (int64_t step = 1; step <= 1'000'000; step *= 10)
      for (const int64_t factor : {1, 2, 5}) rates.push_back((*schedule)(step * factor));
  } catch (const std::exception&) {  // one's own, made for no more steps than it has to serve
  }
  return rates;
}

void require_done_on_devices(const Goals& goals, const Strategy& strategy) {
  if (!strategy.world().on_devices()) return;
  for (const Goal& goal : goals) {
    if (dynamic_cast<const ReadsLabels*>(&goal.loss.kernel()) == nullptr) continue;
    if (strategy.options().step_graph)
      throw UsageError(fmt::format(
          "compile: loss {}: its labels are read on the host in every step, and with step_graph "
          "the device repeats a step by itself; leave out step_graph (--step-graph)",
          goal.loss.name()));
    if (at::globalContext().deterministicAlgorithms())
      throw UsageError(fmt::format(
          "compile: loss {}: no device adds its gradient in one order, which `deterministic` asks "
          "for; leave that out (--deterministic), or train on CPUs (--device cpu)",
          goal.loss.name()));
  }
}

std::string digest_of_first_samples(const data::Dataset& dataset, uint64_t seed) {
  const data::Epoch epoch = dataset.epoch({.seed = seed});
  Sha256 sha;
  try {
    const data::Batch batch = epoch.part(0, {0, std::min(kFirst, epoch.batch_size(0))});
    for (const Array& column : batch.columns) sha.update(column.data(), column.num_bytes());
  } catch (const DataError&) {
    sha.update("damaged");
  }
  return sha.hex();
}

}  // namespace tutti::detail
