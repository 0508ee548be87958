// Areas under curves, from how many samples of either answer have outputs in each of many bins.
//
// State: the weights of samples whose answer is 1, by bin from low to high outputs; then those
// whose answer is 0.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

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

template <class BinOf, class Options>
Metric of_bins(const std::string& name, int64_t bins, BinOf bin_of,
               double (*value)(std::span<const double>), const Options& options,
               Metric (*make)(Options)) {
  const bool from_logits = options.from_logits.value_or(false);
  return Metric(detail::following_loss(
      {.name = name,
       .num_states = [bins](int64_t) { return 2 * bins; },
       .add =
           [=](const SampleRows& rows, std::span<double> state) {
             detail::require_binary(name, rows);
             for (int64_t row = 0; row < rows.rows; ++row) {
               const bool right = detail::is_yes(name, rows, row);
               const int64_t bin =
                   bin_of(detail::probability_of(name, rows, row, from_logits, right));
               state[static_cast<size_t>(right ? bin : bins + bin)] += detail::weight_of(rows, row);
             }
           },
       .value = value},
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
  const std::string name = roc ? "auc" : "pr_auc";
  require_bins(name, "num_thresholds", options.num_thresholds, 2);
  const int bins = options.num_thresholds - 1;
  // An output is above a threshold, not at it: bin i is (i, i + 1] / bins, and the first has 0 too.
  const auto bin_of = [scale = static_cast<float>(bins)](float output) {
    return std::max<int64_t>(0, static_cast<int64_t>(std::ceil(output * scale)) - 1);
  };
  return of_bins(name, bins, bin_of, roc ? roc_area : pr_area, options, auc);
}

Metric average_precision(AveragePrecisionOptions options) {
  const std::string name = "average_precision";
  require_bins(name, "bins", options.bins, 1);
  // To the nearest, so that multiples of the bin stay apart whichever way they were rounded.
  const auto bin_of = [scale = static_cast<double>(options.bins)](float output) {
    return static_cast<int64_t>(std::lround(static_cast<double>(output) * scale));
  };
  return of_bins(name, int64_t{options.bins} + 1, bin_of, precision_by_recall, options,
                 average_precision);
}

}  // namespace tutti::metrics
