#include "tutti/train/metrics.h"

#include <fmt/format.h>

#include <cmath>

#include "tutti/base/error.h"

namespace tutti::metrics {

namespace {

/// How many outputs stand before the label's when sorted: largest first, then lower index first. An
/// output that is not a number stands before all.
int64_t place_of(const float* outputs, int64_t width, int64_t label) {
  const float own = outputs[label];
  int64_t before = 0;
  for (int64_t c = 0; c < label; ++c) before += !(outputs[c] < own);
  for (int64_t c = label + 1; c < width; ++c) before += !(outputs[c] <= own);
  return before;
}

void add_top_k(const std::string& name, int k, const SampleRows& rows, MetricSum& into) {
  if (rows.labels == nullptr) {
    throw UsageError(fmt::format("metric {}: needs int64 labels, one a sample", name));
  }
  int64_t right = 0;
  for (int64_t row = 0; row < rows.rows; ++row) {
    const int64_t label = rows.labels[row];
    const float* outputs = rows.outputs + row * rows.width;
    if (label < 0 || label >= rows.width) {
      throw DataError(fmt::format("metric {}: label {}, but the model gives {} outputs", name,
                                  label, rows.width));
    }
    right += !std::isnan(outputs[label]) && place_of(outputs, rows.width, label) < k;
  }
  into.sum += static_cast<double>(right);
  into.count += rows.rows;
}

}  // namespace

Metric accuracy() {
  return {"accuracy",
          [](const SampleRows& rows, MetricSum& into) { add_top_k("accuracy", 1, rows, into); }};
}

Metric top_k_accuracy(int k) {
  if (k < 1) throw UsageError(fmt::format("top_k_accuracy: k is {}, must be 1 or more", k));
  const std::string name = fmt::format("top_{}_accuracy", k);
  return {name,
          [name, k](const SampleRows& rows, MetricSum& into) { add_top_k(name, k, rows, into); }};
}

}  // namespace tutti::metrics
