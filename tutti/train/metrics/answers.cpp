// Answers of yes and no, a sample or an element of a mask each: true and false positives and
// negatives, and the IoU of masks.
#include <fmt/format.h>

#include "tutti/base/error.h"
#include "tutti/train/metrics/detail/rows.h"

namespace tutti::metrics {

namespace {

/// Weights of answers by what is right and what is said.
enum AnswerKind : uint8_t { kTruePositive, kFalsePositive, kTrueNegative, kFalseNegative };
constexpr int kAnswerKinds = 4;

AnswerKind kind_of(bool right, bool said) {
  if (said) return right ? kTruePositive : kFalsePositive;
  return right ? kFalseNegative : kTrueNegative;
}

/// Calls use(what is right, what is said, weight) for each sample: whether it is of class `only`.
template <class Use>
void for_each_of_class(const std::string& name, int64_t only, const SampleRows& rows, Use use) {
  detail::require_labels(name, rows);
  if (only >= rows.width || rows.width == 1)
    throw UsageError(fmt::format("metric {}: class {}, but the model gives {} output{}", name, only,
                                 rows.width, rows.width == 1 ? "" : "s"));
  for (int64_t row = 0; row < rows.rows; ++row) {
    const int64_t label = detail::label_of(name, rows, row, rows.width);
    const int64_t said = detail::largest_of(rows.outputs + row * rows.width, rows.width);
    use(label == only, said == only, detail::weight_of(rows, row));
  }
}

/// The same for each output, of which a target says 0 or 1.
template <class Use>
void for_each_element(const std::string& name, float cut, const SampleRows& rows, Use use) {
  if (rows.width > 1 && rows.labels != nullptr)
    throw UsageError(fmt::format(
        "metric {}: needs a target of 0 or 1 for each of the {} outputs of a sample; got labels: "
        "for them there are confusion_matrix and iou, and .only of the counts names a class",
        name, rows.width));
  if (rows.labels == nullptr) detail::require_targets(name, rows);
  for (int64_t row = 0; row < rows.rows; ++row) {
    const double weight = detail::weight_of(rows, row);
    for (int64_t i = row * rows.width; i < (row + 1) * rows.width; ++i) {
      const bool right = rows.labels != nullptr ? detail::is_yes(name, rows, row)
                                                : detail::is_yes(name, rows.targets[i], row);
      use(right, detail::says_yes(rows.outputs[i], cut, right), weight);
    }
  }
}

Metric count_of(AnswerKind kind, const char* what, const CountOptions& options,
                Metric (*make)(CountOptions)) {
  if (options.only < -1)
    throw UsageError(
        fmt::format("metric {}: class {}, must be 0 or more, or -1 for none", what, options.only));
  const std::string name = options.only < 0 ? what : fmt::format("{}_of_{}", what, options.only);
  const float cut = detail::cut_of(name, options.threshold, options.from_logits);
  return Metric(detail::following_loss(
      {.name = name,
       .num_states = [](int64_t) { return 1; },
       .add =
           [=, only = options.only](const SampleRows& rows, std::span<double> state) {
             const auto use = [&](bool right, bool said, double weight) {
               if (kind_of(right, said) == kind) state[0] += weight;
             };
             only >= 0 ? for_each_of_class(name, only, rows, use)
                       : for_each_element(name, cut, rows, use);
           },
       .value = [](std::span<const double> state) { return state[0]; }},
      options, make));
}

double mean_iou_of_answers(std::span<const double> state) {
  const double wrong = state[kFalsePositive] + state[kFalseNegative];
  double sum = 0;
  int occur = 0;
  for (const AnswerKind right : {kTruePositive, kTrueNegative}) {
    if (state[right] + wrong == 0) continue;
    sum += state[right] / (state[right] + wrong);
    ++occur;
  }
  return detail::quotient(sum, occur);
}

}  // namespace

Metric true_positives(CountOptions options) {
  return count_of(kTruePositive, "true_positives", options, true_positives);
}
Metric false_positives(CountOptions options) {
  return count_of(kFalsePositive, "false_positives", options, false_positives);
}
Metric true_negatives(CountOptions options) {
  return count_of(kTrueNegative, "true_negatives", options, true_negatives);
}
Metric false_negatives(CountOptions options) {
  return count_of(kFalseNegative, "false_negatives", options, false_negatives);
}

Metric binary_iou(BinaryOptions options) {
  const std::string name = "binary_iou";
  const float cut = detail::cut_of(name, options.threshold, options.from_logits);
  return Metric(detail::following_loss(
      {.name = name,
       .num_states = [](int64_t) { return kAnswerKinds; },
       .add =
           [=](const SampleRows& rows, std::span<double> state) {
             for_each_element(name, cut, rows, [&](bool right, bool said, double weight) {
               state[kind_of(right, said)] += weight;
             });
           },
       .value = mean_iou_of_answers},
      options, binary_iou));
}

}  // namespace tutti::metrics
