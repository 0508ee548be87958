#include <fmt/format.h>

#include <charconv>
#include <optional>

#include "tutti/base/error.h"
#include "tutti/base/suggest.h"
#include "tutti/train/metrics/detail/rows.h"

namespace tutti {

namespace {

std::vector<Metric> usual_metrics() {
  using metrics::Average;
  std::vector<Metric> all{metrics::accuracy(), metrics::top_k_accuracy(),
                          metrics::binary_accuracy(), metrics::categorical_accuracy(),
                          metrics::perplexity()};
  for (const auto average : {Average::macro, Average::micro, Average::weighted})
    for (const auto make : {metrics::precision, metrics::recall, metrics::f1, metrics::iou})
      all.push_back(make({.average = average}));
  for (const auto average : {Average::macro, Average::micro, Average::weighted}) {
    all.push_back(metrics::auc({.average = average}));
    all.push_back(metrics::auc({.curve = metrics::Curve::pr, .average = average}));
    all.push_back(metrics::average_precision({.average = average}));
  }
  for (const auto make : {metrics::true_positives, metrics::false_positives,
                          metrics::true_negatives, metrics::false_negatives})
    all.push_back(make({}));
  for (const auto& metric :
       {metrics::f_beta(2), metrics::binary_iou(), metrics::map_at_k(), metrics::confusion_matrix(),
        metrics::mean_squared_error(), metrics::root_mean_squared_error(),
        metrics::mean_absolute_error(), metrics::r2_score()})
    all.push_back(metric);
  return all;
}

/// What stands for K in "top_K_accuracy".
template <class Number>
std::optional<Number> number_between(std::string_view text, std::string_view before,
                                     std::string_view after) {
  if (!text.starts_with(before) || !text.ends_with(after)) return {};
  if (text.size() <= before.size() + after.size()) return {};
  const char* const begin = text.data() + before.size();
  const char* const end = text.data() + text.size() - after.size();
  Number number = 0;
  const auto [rest, failure] = std::from_chars(begin, end, number);
  if (failure != std::errc() || rest != end) return {};
  return number;
}

/// One metric has one name, by which columns are found: "f_beta_2", not "f_beta_2.0" too.
Metric of_name(Metric metric, std::string_view name) {
  if (metric.name() != name)
    throw UsageError(fmt::format(
        "metric \"{}\": got another way to write \"{}\"; expected that name", name, metric.name()));
  return metric;
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
  if (const auto k = number_between<int>(name, "top_", "_accuracy"))
    return of_name(metrics::top_k_accuracy(*k), name);
  if (const auto k = number_between<int>(name, "map_at_", ""))
    return of_name(metrics::map_at_k(*k), name);
  using metrics::Average;
  for (const auto average : {Average::macro, Average::micro, Average::weighted})
    if (const auto beta =
            number_between<double>(name, detail::averaged_name("f_beta_", average), ""))
      return of_name(metrics::f_beta(*beta, {.average = average}), name);
  throw UsageError(unknown_message("metric", name, metric_names()));
}

}  // namespace tutti
