// Metrics of regression: sums over differences of outputs and targets.
#include <cmath>

#include "tutti/train/metrics/detail/rows.h"

namespace tutti::metrics {

namespace {

/// Adds to a sum the mean over each sample's outputs of error(difference).
template <class OfDifference>
Metric mean_error(const std::string& name, OfDifference error,
                  double (*value)(std::span<const double>)) {
  return Metric({.name = name,
                 .num_states = [](int64_t) { return 2; },
                 .add =
                     [name, error](const SampleRows& rows, std::span<double> state) {
                       detail::require_targets(name, rows);
                       for (int64_t row = 0; row < rows.rows; ++row) {
                         double sum = 0;
                         for (int64_t i = row * rows.width; i < (row + 1) * rows.width; ++i)
                           sum += error(static_cast<double>(rows.outputs[i]) -
                                        static_cast<double>(rows.targets[i]));
                         const double weight = detail::weight_of(rows, row);
                         state[0] += weight * sum / static_cast<double>(rows.width);
                         state[1] += weight;
                       }
                     },
                 .value = value});
}

double square(double difference) { return difference * difference; }

double mean_of_sum(std::span<const double> state) { return detail::quotient(state[0], state[1]); }

/// Below this share of the sum of squares, squared distances from the mean are rounding: floats, as
/// targets are, keep 6e-8 of their size.
constexpr double kConstant = 1e-12;

/// What one output adds up, for R^2; the weights of the samples follow those of all outputs.
enum R2State : uint8_t { kTargets, kSquares, kResiduals, kR2States };

double mean_r2(std::span<const double> state) {
  const size_t outputs = (state.size() - 1) / kR2States;
  const double count = state.back();
  if (count == 0) return 0;
  double sum = 0;
  for (size_t output = 0; output < outputs; ++output) {
    const auto own = state.subspan(kR2States * output, kR2States);
    const double distances = own[kSquares] - own[kTargets] * own[kTargets] / count;
    if (distances <= kConstant * own[kSquares]) {
      sum += own[kResiduals] == 0 ? 1 : 0;
    } else {
      sum += 1 - own[kResiduals] / distances;
    }
  }
  return sum / static_cast<double>(outputs);
}

}  // namespace

Metric mean_squared_error() { return mean_error("mean_squared_error", square, mean_of_sum); }

Metric root_mean_squared_error() {
  return mean_error("root_mean_squared_error", square,
                    [](std::span<const double> state) { return std::sqrt(mean_of_sum(state)); });
}

Metric mean_absolute_error() {
  return mean_error(
      "mean_absolute_error", [](double difference) { return std::abs(difference); }, mean_of_sum);
}

Metric r2_score() {
  const std::string name = "r2_score";
  return Metric({.name = name,
                 .num_states = [](int64_t width) { return kR2States * width + 1; },
                 .add =
                     [name](const SampleRows& rows, std::span<double> state) {
                       detail::require_targets(name, rows);
                       for (int64_t row = 0; row < rows.rows; ++row) {
                         const double weight = detail::weight_of(rows, row);
                         for (int64_t output = 0; output < rows.width; ++output) {
                           const int64_t i = row * rows.width + output;
                           const double target = rows.targets[i];
                           double* const own = state.data() + kR2States * output;
                           own[kTargets] += weight * target;
                           own[kSquares] += weight * target * target;
                           own[kResiduals] += weight * square(rows.outputs[i] - target);
                         }
                         state.back() += weight;
                       }
                     },
                 .value = mean_r2});
}

}  // namespace tutti::metrics
