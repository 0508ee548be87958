/// What metrics ask of samples, with errors that name the metric; not for users.
#pragma once

#include <cmath>
#include <string>
#include <string_view>

#include "tutti/train/metrics/metrics.h"

namespace tutti::detail {

inline double weight_of(const SampleRows& rows, int64_t row) {
  return rows.weights == nullptr ? 1.0 : static_cast<double>(rows.weights[row]);
}

inline double quotient(double numerator, double denominator) {
  return denominator == 0 ? 0 : numerator / denominator;
}

/// How many outputs stand before the label's when sorted: largest first, then lower index first. An
/// output that is not a number stands before all.
int64_t place_of(const float* outputs, int64_t width, int64_t label);

/// The first of the largest; -1 when one is not a number.
int64_t largest_of(const float* outputs, int64_t width);

/// UsageError unless there are int64 labels.
void require_labels(const std::string& name, const SampleRows& rows);
/// UsageError unless there are as many float targets as outputs.
void require_targets(const std::string& name, const SampleRows& rows);
/// "micro_auc" and so on; of Average::macro the name alone.
std::string averaged_name(std::string_view what, metrics::Average average);

/// UsageError unless it is one output a sample and one label or float target.
void require_binary(const std::string& name, const SampleRows& rows);

/// Of row `row`; DataError unless it is one of `classes`.
int64_t label_of(const std::string& name, const SampleRows& rows, int64_t row, int64_t classes);
/// DataError unless it is 0 or 1.
bool is_yes(const std::string& name, float target, int64_t row);
/// Of a row that is binary.
bool is_yes(const std::string& name, const SampleRows& rows, int64_t row);

/// Where outputs, which may be logits, begin to say yes. UsageError when there is no such place.
float cut_of(const std::string& name, double threshold, std::optional<bool> from_logits);
/// One that is not a number says what is wrong.
inline bool says_yes(float output, float cut, bool right) {
  return std::isnan(output) ? !right : output > cut;
}

/// An output of row `row`, between 0 and 1; one that is not a number becomes the wrong end.
/// DataError when outside.
float probability_of(const std::string& name, float output, int64_t row, bool from_logits,
                     bool right);

/// A metric whose options say whether outputs are logits; `make` makes it of such options.
template <class Options, class Make>
MetricDefinition following_loss(MetricDefinition definition, Options options, Make make) {
  definition.from_logits = options.from_logits;
  definition.of_outputs = [options, make](bool from_logits) mutable {
    options.from_logits = from_logits;
    return make(options);
  };
  return definition;
}

}  // namespace tutti::detail
