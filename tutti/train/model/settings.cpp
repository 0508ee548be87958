#include "tutti/train/model/detail/settings.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <variant>

#include "tutti/base/error.h"
#include "tutti/base/sha256.h"

namespace tutti::detail {
namespace {

constexpr int64_t kSamples = 8;

std::string rule_words(const optim::Rule& rule) {
  std::string words(rule.name());
  const auto add = [&](const char* field, auto value) {
    words += fmt::format(" {} {}", field, value);
  };
  std::visit([&](const auto& options) { optim::visit_fields(options, add); }, rule.options());
  return words;
}

void hash_batch(Sha256& sha, const data::Batch& batch) {
  for (const Array& column : batch.columns) sha.update(column.data(), column.num_bytes());
}

// Training replaces a damaged one, or fails and names it: either way it is no matter of the digest.
void hash_each(Sha256& sha, const data::Epoch& epoch, int64_t samples) {
  constexpr std::string_view kDamaged = "damaged";
  for (int64_t i = 0; i < samples; ++i) try {
      hash_batch(sha, epoch.part(0, {i, i + 1}));
    } catch (const DataError&) {
      sha.update(kDamaged.data(), kDamaged.size());
    }
}

}  // namespace

std::string optimizer_words(const OptimizerChoice& choice) {
  const auto* const recipe = std::get_if<optim::Recipe>(&choice);
  if (recipe == nullptr) return "a torch optimizer";
  const optim::Clip& clip = recipe->clip();
  std::string words =
      fmt::format("{}, clipped by value {}, norm {}, global_norm {}", rule_words(recipe->rule()),
                  clip.value, clip.norm, clip.global_norm);
  for (const optim::Group& group : recipe->groups())
    words += fmt::format(
        ", group {} by {}{}", group.pattern, group.learning_rate_factor,
        group.weight_decay ? fmt::format(" weight_decay {}", *group.weight_decay) : std::string());
  return words;
}

std::string goal_words(const Goal& goal) {
  std::vector<std::string> metrics;
  for (const Metric& metric : goal.metrics) metrics.push_back(metric.name());
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

std::string digest_of_samples(const data::Dataset& dataset, uint64_t seed) {
  const data::Epoch epoch = dataset.epoch({.seed = seed});
  const int64_t samples = std::min(kSamples, epoch.batch_size(0));
  Sha256 sha;
  try {
    hash_batch(sha, epoch.part(0, {0, samples}));
  } catch (const DataError&) {
    hash_each(sha, epoch, samples);
  }
  return sha.hex();
}

}  // namespace tutti::detail
