#include <charconv>
#include <optional>

#include "tutti/base/error.h"
#include "tutti/base/suggest.h"
#include "tutti/train/metrics/metrics.h"

namespace tutti {

namespace {

std::vector<Metric> usual_metrics() {
  using metrics::Average;
  std::vector<Metric> all{metrics::accuracy(), metrics::top_k_accuracy(),
                          metrics::binary_accuracy(), metrics::categorical_accuracy(),
                          metrics::perplexity()};
  for (const auto average : {Average::macro, Average::micro, Average::weighted})
    for (const auto make : {metrics::precision, metrics::recall, metrics::f1})
      all.push_back(make({.average = average}));
  all.push_back(metrics::auc());
  all.push_back(metrics::auc({.curve = metrics::Curve::pr}));
  for (const auto& metric :
       {metrics::average_precision(), metrics::map_at_k(), metrics::confusion_matrix(),
        metrics::mean_squared_error(), metrics::root_mean_squared_error(),
        metrics::mean_absolute_error(), metrics::r2_score()})
    all.push_back(metric);
  return all;
}

/// What stands for K in "top_K_accuracy".
std::optional<int> number_between(std::string_view text, std::string_view before,
                                  std::string_view after) {
  if (!text.starts_with(before) || !text.ends_with(after)) return {};
  if (text.size() <= before.size() + after.size()) return {};
  const char* const begin = text.data() + before.size();
  const char* const end = text.data() + text.size() - after.size();
  int number = 0;
  const auto [rest, failure] = std::from_chars(begin, end, number);
  if (failure != std::errc() || rest != end) return {};
  return number;
}

}  // namespace

std::vector<std::string> metric_names() {
  std::vector<std::string> names;
  for (const Metric& metric : usual_metrics()) names.push_back(metric.name());
  return names;
}

Metric metric_by_name(std::string_view name) {
  for (const Metric& metric : usual_metrics())
    if (metric.name() == name) return metric;
  if (const auto k = number_between(name, "top_", "_accuracy")) return metrics::top_k_accuracy(*k);
  if (const auto k = number_between(name, "map_at_", "")) return metrics::map_at_k(*k);
  throw UsageError(unknown_message("metric", name, metric_names()));
}

}  // namespace tutti
