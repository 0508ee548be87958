// Precision, recall, F-beta, IoU and the confusion matrix: counts of labels and predictions.
#include <fmt/format.h>

#include <cmath>
#include <functional>

#include "tutti/base/error.h"
#include "tutti/train/metrics/detail/rows.h"

namespace tutti::metrics {

namespace {

/// Of one class; the state is these three for each.
struct ClassCounts {
  double hits = 0;        ///< labels that were predicted
  double false_hits = 0;  ///< predictions that are not the label
  double misses = 0;      ///< labels that were not predicted

  bool occurs() const { return hits + false_hits + misses > 0; }
};

using ClassScore = std::function<double(const ClassCounts&)>;

ClassCounts counts_of(std::span<const double> state, size_t number) {
  return {state[3 * number], state[3 * number + 1], state[3 * number + 2]};
}

/// Classes of a state begin at `first`: of one output, the answer 1 alone is counted.
void count(std::span<double> state, int64_t first, int64_t label, int64_t said, double weight) {
  const auto of = [&](int64_t number) { return state.data() + 3 * (number - first); };
  if (label == said) {
    if (label >= first) of(label)[0] += weight;
  } else {
    if (label >= first) of(label)[2] += weight;
    if (said >= first) of(said)[1] += weight;
  }
}

/// Calls use(label, prediction, weight) for each sample. One output: the classes 0 and 1.
template <class Use>
void for_each_prediction(const std::string& name, float cut, const SampleRows& rows, Use use) {
  if (rows.width == 1) {
    detail::require_binary(name, rows);
    for (int64_t row = 0; row < rows.rows; ++row) {
      const bool right = detail::is_yes(name, rows, row);
      const bool said = detail::says_yes(rows.outputs[row], cut, right);
      use(int64_t{right}, int64_t{said}, detail::weight_of(rows, row));
    }
    return;
  }
  detail::require_labels(name, rows);
  for (int64_t row = 0; row < rows.rows; ++row) {
    use(detail::label_of(name, rows, row, rows.width),
        detail::largest_of(rows.outputs + row * rows.width, rows.width),
        detail::weight_of(rows, row));
  }
}

double averaged(std::span<const double> state, Average average, const ClassScore& score) {
  if (state.size() == 3) return score(counts_of(state, 0));
  ClassCounts all;
  double sum = 0;
  double weights = 0;
  for (size_t number = 0; 3 * number < state.size(); ++number) {
    const ClassCounts own = counts_of(state, number);
    all.hits += own.hits;
    all.false_hits += own.false_hits;
    all.misses += own.misses;
    if (!own.occurs()) continue;
    const double weight = average == Average::macro ? 1 : own.hits + own.misses;
    sum += weight * score(own);
    weights += weight;
  }
  return average == Average::micro ? score(all) : detail::quotient(sum, weights);
}

std::string name_of(const std::string& what, const ClassOptions& options) {
  if (options.only >= 0) return fmt::format("{}_of_{}", what, options.only);
  return detail::averaged_name(what, options.average);
}

Metric of_classes(const std::string& what, const ClassOptions& options, const ClassScore& score,
                  const std::function<Metric(ClassOptions)>& make) {
  const std::string name = name_of(what, options);
  if (options.only < -1)
    throw UsageError(
        fmt::format("metric {}: class {}, must be 0 or more, or -1 for all", what, options.only));
  const float cut = detail::cut_of(name, options.threshold, options.from_logits);
  return Metric(detail::following_loss(
      {.name = name,
       .num_states = [](int64_t width) { return 3 * width; },
       .add =
           [name, cut, only = options.only](const SampleRows& rows, std::span<double> state) {
             if (only >= (rows.width == 1 ? 0 : rows.width))
               throw UsageError(fmt::format("metric {}: class {}, but the model gives {} output{}",
                                            name, only, rows.width, rows.width == 1 ? "" : "s"));
             const int64_t first = rows.width == 1 ? 1 : 0;
             for_each_prediction(name, cut, rows, [&](int64_t label, int64_t said, double weight) {
               count(state, first, label, said, weight);
             });
           },
       .value =
           [options, score](std::span<const double> state) {
             if (options.only >= 0)
               return score(counts_of(state, static_cast<size_t>(options.only)));
             return averaged(state, options.average, score);
           }},
      options, make));
}

double precision_of(const ClassCounts& of) {
  return detail::quotient(of.hits, of.hits + of.false_hits);
}
double recall_of(const ClassCounts& of) { return detail::quotient(of.hits, of.hits + of.misses); }
double f1_of(const ClassCounts& of) {
  return detail::quotient(2 * of.hits, 2 * of.hits + of.false_hits + of.misses);
}
double iou_of(const ClassCounts& of) {
  return detail::quotient(of.hits, of.hits + of.false_hits + of.misses);
}

}  // namespace

Metric precision(ClassOptions options) {
  return of_classes("precision", options, precision_of, precision);
}
Metric recall(ClassOptions options) { return of_classes("recall", options, recall_of, recall); }
Metric f1(ClassOptions options) { return of_classes("f1", options, f1_of, f1); }

Metric iou(ClassOptions options) { return of_classes("iou", options, iou_of, iou); }

Metric f_beta(double beta, ClassOptions options) {
  // Written so that NaN fails it. Squared it is to be a number still.
  if (!(beta > 0 && beta <= 1e6))
    throw UsageError(fmt::format("metric f_beta: beta is {}, must be above 0, at most 1e6", beta));
  const auto score = [weight = beta * beta](const ClassCounts& of) {
    const double hits = (1 + weight) * of.hits;
    return detail::quotient(hits, hits + weight * of.misses + of.false_hits);
  };
  return of_classes(fmt::format("f_beta_{}", beta), options, score,
                    [beta](ClassOptions anew) { return f_beta(beta, anew); });
}

Metric confusion_matrix(BinaryOptions options) {
  const std::string name = "confusion_matrix";
  const float cut = detail::cut_of(name, options.threshold, options.from_logits);
  const auto num_classes = [](int64_t width) { return width == 1 ? 2 : width; };
  return Metric(detail::following_loss(
      {.name = name,
       .num_states =
           [num_classes](int64_t width) { return num_classes(width) * num_classes(width); },
       .add =
           [name, cut, num_classes](const SampleRows& rows, std::span<double> state) {
             const int64_t classes = num_classes(rows.width);
             for_each_prediction(name, cut, rows, [&](int64_t label, int64_t said, double weight) {
               if (said >= 0) state[static_cast<size_t>(label * classes + said)] += weight;
             });
           },
       .matrix =
           [](std::span<const double> state) {
             Matrix rows;
             size_t classes = 0;
             while (classes * classes < state.size()) ++classes;
             for (size_t row = 0; row < classes; ++row) {
               const auto own = state.subspan(row * classes, classes);
               rows.emplace_back(own.begin(), own.end());
             }
             return rows;
           }},
      options, confusion_matrix));
}

}  // namespace tutti::metrics
