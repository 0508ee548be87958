#include "tutti/train/detail/settings.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>

#include "tutti/base/sha256.h"

namespace tutti::detail {
namespace {

constexpr int64_t kSamples = 8;

// Options differ in fields; what they do to numbers is what counts.
std::string digest_of(const optim::Rule& rule) {
  std::array<double, 4> parameter{0.5, -1.0, 2.0, 0.0};
  const std::array<double, 4> gradient{0.1, -0.2, 0.3, 0.4};
  std::vector<std::array<double, 4>> values(static_cast<size_t>(rule.num_states()));
  std::vector<void*> states;
  for (int state = 0; state < rule.num_states(); ++state) {
    values[static_cast<size_t>(state)].fill(rule.state_start(state));
    states.push_back(values[static_cast<size_t>(state)].data());
  }
  optim::StepScalars scalars;
  for (int step = 0; step < 3; ++step) {
    scalars = rule.next(scalars, rule.learning_rate());
    double trust = 1;
    if (rule.measures()) {
      std::array<optim::Squares, 1> squares{};
      rule.measure(DType::float64, parameter.data(), gradient.data(), states, parameter.size(),
                   scalars, squares);
      trust = rule.trust(squares[0]);
    }
    rule.update(DType::float64, parameter.data(), gradient.data(), states, parameter.size(),
                scalars, trust);
  }
  Sha256 sha;
  sha.update(parameter.data(), sizeof parameter);
  return sha.hex().substr(0, 12);
}

std::string words_of(const optim::Recipe& recipe) {
  const optim::Clip& clip = recipe.clip();
  std::string words = fmt::format("learning rate {:g}, digest {}", recipe.rule().learning_rate(),
                                  digest_of(recipe.rule()));
  if (clip.value > 0) words += fmt::format(", clipped by value {:g}", clip.value);
  if (clip.norm > 0) words += fmt::format(", clipped by norm {:g}", clip.norm);
  if (clip.global_norm > 0) words += fmt::format(", clipped by global norm {:g}", clip.global_norm);
  for (const optim::Group& group : recipe.groups()) {
    words += fmt::format(", {}: x{:g}", group.pattern, group.learning_rate_factor);
    if (group.weight_decay) words += fmt::format(", weight decay {:g}", *group.weight_decay);
  }
  return words;
}

}  // namespace

std::string words_of(const OptimizerChoice& optimizer) {
  const auto* recipe = std::get_if<optim::Recipe>(&optimizer);
  return recipe == nullptr ? "" : words_of(*recipe);
}

std::vector<double> rates_of(const std::optional<RateSchedule>& schedule) {
  std::vector<double> rates;
  for (int64_t step = 1; schedule && step <= 1'000'000; step *= 10)
    for (const int64_t factor : {1, 2, 5}) rates.push_back((*schedule)(step * factor));
  if (schedule) rates.insert(rates.begin(), (*schedule)(0));
  return rates;
}

std::string words_of(const Goals& goals, const std::map<int64_t, double>& class_weight) {
  std::vector<std::string> words;
  for (const Goal& goal : goals)
    words.push_back(fmt::format("{} x{:g}", goal.loss.name(), goal.weight));
  for (const auto& [label, weight] : class_weight)
    words.push_back(fmt::format("class {} x{:g}", label, weight));
  return fmt::format("{}", fmt::join(words, ", "));
}

std::string digest_of_samples(const data::Dataset& dataset, uint64_t seed) {
  const data::Epoch epoch = dataset.epoch({.seed = seed});
  const data::Batch batch = epoch.part(0, {0, std::min(kSamples, epoch.batch_size(0))});
  Sha256 sha;
  for (const Array& column : batch.columns) sha.update(column.data(), column.num_bytes());
  return sha.hex();
}

}  // namespace tutti::detail
