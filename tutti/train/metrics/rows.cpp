#include "tutti/train/metrics/detail/rows.h"

#include <fmt/format.h>

#include "tutti/base/error.h"
#include "tutti/train/losses/detail/samples.h"

namespace tutti::detail {

int64_t place_of(const float* outputs, int64_t width, int64_t label) {
  const float own = outputs[label];
  int64_t before = 0;
  for (int64_t c = 0; c < label; ++c) before += !(outputs[c] < own);
  for (int64_t c = label + 1; c < width; ++c) before += !(outputs[c] <= own);
  return before;
}

int64_t largest_of(const float* outputs, int64_t width) {
  int64_t largest = 0;
  for (int64_t c = 0; c < width; ++c) {
    if (std::isnan(outputs[c])) return -1;
    if (outputs[c] > outputs[largest]) largest = c;
  }
  return largest;
}

void require_labels(const std::string& name, const SampleRows& rows) {
  if (rows.labels != nullptr) return;
  throw UsageError(
      fmt::format("metric {}: needs int64 labels, one a sample; got {}", name,
                  rows.targets == nullptr
                      ? "targets of another kind"
                      : fmt::format("{} float{} a sample, for which there are binary_accuracy, "
                                    "categorical_accuracy and the metrics of regression",
                                    rows.target_width, rows.target_width == 1 ? "" : "s")));
}

void require_targets(const std::string& name, const SampleRows& rows) {
  if (rows.targets != nullptr && rows.target_width == rows.width) return;
  throw UsageError(fmt::format(
      "metric {}: needs as many float targets as outputs, {} a sample; got {}", name, rows.width,
      rows.targets != nullptr ? std::to_string(rows.target_width) : "no floats"));
}

std::string averaged_name(std::string_view what, metrics::Average average) {
  if (average == metrics::Average::macro) return std::string(what);
  return fmt::format("{}_{}", average == metrics::Average::micro ? "micro" : "weighted", what);
}

void require_binary(const std::string& name, const SampleRows& rows) {
  if (rows.width != 1)
    throw UsageError(
        fmt::format("metric {}: needs 1 output a sample, the model gives {}", name, rows.width));
  if (rows.labels == nullptr) require_targets(name, rows);
}

int64_t label_of(const std::string& name, const SampleRows& rows, int64_t row, int64_t classes) {
  const int64_t label = rows.labels[row];
  if (label >= 0 && label < classes) return label;
  throw RowError("metric " + name, row,
                 fmt::format("label {}, but the model gives {} output{}{}", label, classes,
                             classes == 1 ? "" : "s",
                             classes == 1 ? "; of one output there is binary_accuracy" : ""));
}

bool is_yes(const std::string& name, float target, int64_t row) {
  if (target == 0 || target == 1) return target == 1;
  throw RowError("metric " + name, row, fmt::format("target {}, expected 0 or 1", target));
}

bool is_yes(const std::string& name, const SampleRows& rows, int64_t row) {
  if (rows.labels == nullptr) return is_yes(name, rows.targets[row], row);
  const int64_t label = rows.labels[row];
  if (label == 0 || label == 1) return label == 1;
  throw RowError("metric " + name, row,
                 fmt::format("label {}, expected 0 or 1 for one output a sample", label));
}

float cut_of(const std::string& name, double threshold, std::optional<bool> told) {
  const bool from_logits = told.value_or(false);
  if (!std::isfinite(threshold) || (from_logits && (threshold <= 0 || threshold >= 1)))
    throw UsageError(
        fmt::format("metric {}: threshold is {}, must be {}", name, threshold,
                    from_logits ? "between 0 and 1, since outputs are logits" : "finite"));
  return static_cast<float>(from_logits ? std::log(threshold / (1 - threshold)) : threshold);
}

float probability_of(const std::string& name, float output, int64_t row, bool from_logits,
                     bool right) {
  if (std::isnan(output)) return right ? 0.0F : 1.0F;
  if (from_logits) return 1.0F / (1.0F + std::exp(-output));
  if (output >= 0 && output <= 1) return output;
  throw RowError(
      "metric " + name, row,
      fmt::format("output {}, expected 0 to 1; when outputs are logits, set from_logits", output));
}

}  // namespace tutti::detail
