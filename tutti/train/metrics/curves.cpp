// Areas under curves, from how many samples of either answer have outputs in each of many bins.
//
// State: the weights of samples whose answer is 1, by bin from low to high outputs; then those
// whose answer is 0. Of several classes this for each, where the answer is whether it is the class.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <span>
#include <vector>

#include "tutti/base/error.h"
#include "tutti/train/metrics/detail/rows.h"

namespace tutti::metrics {

namespace {

// 16 MB of state. All integers up to 2^24 are floats, so that bins stay apart.
constexpr int kMostBins = 1'000'000;

void require_bins(const std::string& name, const char* what, int got, int least) {
  if (got >= least && got <= kMostBins) return;
  throw UsageError(
      fmt::format("metric {}: {} is {}, must be {} to {}", name, what, got, least, kMostBins));
}

/// Calls `use` with the weights of answers 1 and 0 in each bin, from the highest.
template <class Use>
void from_the_highest_bin(std::span<const double> state, Use use) {
  const size_t bins = state.size() / 2;
  for (size_t bin = bins; bin-- > 0;) use(state[bin], state[bins + bin]);
}

/// Sums of both answers.
struct Answers {
  double yes = 0;
  double no = 0;
};

Answers answers_in(std::span<const double> state) {
  Answers all;
  from_the_highest_bin(state, [&](double yes, double no) {
    all.yes += yes;
    all.no += no;
  });
  return all;
}

/// What of an output is an answer of its own.
struct AnswersOf {
  bool multi_label = false;
  bool from_logits = false;
};

/// Probabilities of a row's classes, by a softmax of logits; all NaN where one of them is.
void put_probabilities(const float* logits, std::span<float> into) {
  const double most = *std::max_element(logits, logits + into.size());
  double sum = 0;
  for (size_t c = 0; c < into.size(); ++c) sum += std::exp(logits[c] - most);
  for (size_t c = 0; c < into.size(); ++c)
    into[c] = static_cast<float>(std::exp(logits[c] - most) / sum);
}

/// Calls use(class, whether it is the right answer, probability of 0 to 1, weight).
template <class Use>
void for_each_class(const std::string& name, AnswersOf of, const SampleRows& rows, Use use) {
  if (of.multi_label) {
    detail::require_targets(name, rows);
  } else if (rows.labels == nullptr) {
    throw UsageError(
        fmt::format("metric {}: of {} outputs a sample needs int64 labels, one a sample, or, with "
                    ".multi_label, as many float targets of 0 or 1; got {}",
                    name, rows.width,
                    rows.targets == nullptr ? "targets of another kind"
                                            : fmt::format("{} floats", rows.target_width)));
  }
  std::vector<float> softmax(static_cast<size_t>(rows.width));
  const bool logits_of_labels = of.from_logits && !of.multi_label;
  for (int64_t row = 0; row < rows.rows; ++row) {
    const int64_t label = of.multi_label ? -1 : detail::label_of(name, rows, row, rows.width);
    if (logits_of_labels) put_probabilities(rows.outputs + row * rows.width, softmax);
    for (int64_t c = 0; c < rows.width; ++c) {
      const int64_t at = row * rows.width + c;
      const bool right = of.multi_label ? detail::is_yes(name, rows.targets[at], row) : label == c;
      const float output = logits_of_labels ? softmax[static_cast<size_t>(c)] : rows.outputs[at];
      use(c, right,
          detail::probability_of(name, output, row, of.from_logits && of.multi_label, right),
          detail::weight_of(rows, row));
    }
  }
}

using Area = double (*)(std::span<const double>);

/// `state` of each class in turn. Classes without an area do not count: those without samples, and
/// of ROC those without samples of others.
double averaged_area(std::span<const double> state, size_t each, Average average, Area area,
                     bool needs_both) {
  if (state.size() == each) return area(state);
  if (average == Average::micro) {
    std::vector<double> all(each);
    for (size_t i = 0; i < state.size(); ++i) all[i % each] += state[i];
    return area(all);
  }
  double sum = 0;
  double weights = 0;
  for (size_t begin = 0; begin < state.size(); begin += each) {
    const auto own = state.subspan(begin, each);
    const Answers answers = answers_in(own);
    if (answers.yes == 0 || (needs_both && answers.no == 0)) continue;
    const double weight = average == Average::macro ? 1 : answers.yes;
    sum += weight * area(own);
    weights += weight;
  }
  return detail::quotient(sum, weights);
}

template <class BinOf, class Options>
Metric of_bins(const std::string& name, int64_t bins, BinOf bin_of, Area area, bool needs_both,
               const Options& options, Metric (*make)(Options)) {
  const AnswersOf of{options.multi_label, options.from_logits.value_or(false)};
  const auto count = [=](std::span<double> state, bool right, float probability, double weight) {
    const int64_t bin = bin_of(probability);
    state[static_cast<size_t>(right ? bin : bins + bin)] += weight;
  };
  const auto add = [=](const SampleRows& rows, std::span<double> state) {
    if (rows.width == 1) {
      detail::require_binary(name, rows);
      for (int64_t row = 0; row < rows.rows; ++row) {
        const bool right = detail::is_yes(name, rows, row);
        count(state, right,
              detail::probability_of(name, rows.outputs[row], row, of.from_logits, right),
              detail::weight_of(rows, row));
      }
      return;
    }
    const auto each = static_cast<size_t>(2 * bins);
    for_each_class(name, of, rows, [&](int64_t c, bool right, float probability, double weight) {
      count(state.subspan(static_cast<size_t>(c) * each, each), right, probability, weight);
    });
  };
  return Metric(detail::following_loss(
      {.name = name,
       .num_states = [bins](int64_t width) { return 2 * bins * width; },
       .add = add,
       .value =
           [=, average = options.average](std::span<const double> state) {
             return averaged_area(state, static_cast<size_t>(2 * bins), average, area, needs_both);
           }},
      options, make));
}

double roc_area(std::span<const double> state) {
  const Answers all = answers_in(state);
  double hits = 0;
  double twice = 0;
  from_the_highest_bin(state, [&](double yes, double no) {
    twice += no * (hits + hits + yes);
    hits += yes;
  });
  return detail::quotient(twice, 2 * all.yes * all.no);
}

// Davis & Goadrich 2006, doi:10.1145/1143844.1143874: between two points of a precision-recall
// curve hits grow evenly with predictions, hits = slope * predictions + intercept. The integral of
// hits / predictions over hits is slope * (hits gained + intercept * log(ratio of predictions)).
double pr_area(std::span<const double> state) {
  double hits = 0;
  double predictions = 0;
  double area = 0;
  from_the_highest_bin(state, [&](double yes, double no) {
    const double slope = detail::quotient(yes, yes + no);
    const double intercept = hits - slope * predictions;
    const double after = predictions + yes + no;
    const double growth = predictions > 0 ? std::log(after / predictions) : 0;
    area += slope * (yes + intercept * growth);
    hits += yes;
    predictions = after;
  });
  return detail::quotient(area, hits);
}

double precision_by_recall(std::span<const double> state) {
  double hits = 0;
  double predictions = 0;
  double sum = 0;
  from_the_highest_bin(state, [&](double yes, double no) {
    hits += yes;
    predictions += yes + no;
    sum += yes * detail::quotient(hits, predictions);
  });
  return detail::quotient(sum, hits);
}

}  // namespace

Metric auc(AucOptions options) {
  const bool roc = options.curve == Curve::roc;
  const std::string name = detail::averaged_name(roc ? "auc" : "pr_auc", options.average);
  require_bins(name, "num_thresholds", options.num_thresholds, 2);
  const int bins = options.num_thresholds - 1;
  // An output is above a threshold, not at it: bin i is (i, i + 1] / bins, and the first has 0 too.
  const auto bin_of = [scale = static_cast<float>(bins)](float output) {
    return std::max<int64_t>(0, static_cast<int64_t>(std::ceil(output * scale)) - 1);
  };
  return of_bins(name, bins, bin_of, roc ? roc_area : pr_area, roc, options, auc);
}

Metric average_precision(AveragePrecisionOptions options) {
  const std::string name = detail::averaged_name("average_precision", options.average);
  require_bins(name, "bins", options.bins, 1);
  // To the nearest, so that multiples of the bin stay apart whichever way they were rounded.
  const auto bin_of = [scale = static_cast<double>(options.bins)](float output) {
    return static_cast<int64_t>(std::lround(static_cast<double>(output) * scale));
  };
  return of_bins(name, int64_t{options.bins} + 1, bin_of, precision_by_recall, false, options,
                 average_precision);
}

}  // namespace tutti::metrics
