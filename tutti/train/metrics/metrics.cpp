#include "tutti/train/metrics/metrics.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "tutti/base/error.h"
#include "tutti/train/losses/detail/crossentropy_of_row.h"
#include "tutti/train/losses/detail/samples.h"
#include "tutti/train/metrics/detail/rows.h"

namespace tutti {

using detail::weight_of;

namespace {

MetricDefinition definition_of(std::string name, Metric::Function add) {
  if (!add) throw UsageError(fmt::format("metric {}: its function is empty", name));
  return {
      .name = std::move(name),
      .num_states = [](int64_t) { return 2; },
      .add =
          [add = std::move(add)](const SampleRows& rows, std::span<double> state) {
            MetricSum sum;
            add(rows, sum);
            state[0] += sum.sum;
            state[1] += sum.count;
          },
      .value = [](std::span<const double> state) { return MetricSum{state[0], state[1]}.value(); }};
}

/// Calls use(stretch, its first row) for the longest stretches of rows without that label.
template <class Use>
void for_each_stretch(const SampleRows& rows, int64_t ignored, Use use) {
  for (int64_t begin = 0, end = 0; begin < rows.rows; begin = end + 1) {
    for (end = begin; end < rows.rows && rows.labels[end] != ignored;) ++end;
    if (begin == end) continue;
    SampleRows stretch = rows;
    stretch.rows = end - begin;
    stretch.outputs += begin * rows.width;
    stretch.labels += begin;
    if (rows.targets != nullptr) stretch.targets += begin * rows.target_width;
    if (rows.weights != nullptr) stretch.weights += begin;
    use(stretch, begin);
  }
}

Metric with_weights(Metric metric, bool weighted) { return weighted ? metric.weighted() : metric; }

void require_k(const char* what, int k) {
  if (k < 1) throw UsageError(fmt::format("{}: k is {}, must be 1 or more", what, k));
}

/// Adds what a place (0: the first) among the outputs is worth; beyond `k` places, nothing.
template <class Worth>
void add_by_place(const std::string& name, int k, const SampleRows& rows, MetricSum& into,
                  Worth worth) {
  detail::require_labels(name, rows);
  for (int64_t row = 0; row < rows.rows; ++row) {
    const int64_t label = detail::label_of(name, rows, row, rows.width);
    const float* outputs = rows.outputs + row * rows.width;
    const double weight = weight_of(rows, row);
    into.count += weight;
    if (std::isnan(outputs[label])) continue;
    const int64_t place = detail::place_of(outputs, rows.width, label);
    if (place < k) into.sum += weight * worth(place);
  }
}

Metric among_largest(const std::string& name, int k) {
  return {name, [name, k](const SampleRows& rows, MetricSum& into) {
            add_by_place(name, k, rows, into, [](int64_t) { return 1.0; });
          }};
}

}  // namespace

Metric::Metric(std::string name, Function add)
    : Metric(definition_of(std::move(name), std::move(add))) {}

Metric::Metric(MetricDefinition definition)
    : definition_(std::make_shared<const MetricDefinition>(std::move(definition))) {
  const MetricDefinition& made = *definition_;
  if (!made.num_states || !made.add || (made.value != nullptr) == (made.matrix != nullptr))
    throw UsageError(
        fmt::format("metric {}: needs num_states, add, and either value or matrix", made.name));
}

Metric Metric::named(std::string name) const {
  MetricDefinition definition = *definition_;
  definition.name = std::move(name);
  return Metric(std::move(definition));
}

Metric Metric::following(std::optional<bool> from_logits) const {
  const MetricDefinition& made = *definition_;
  if (!made.of_outputs || !from_logits || made.from_logits == from_logits) return *this;
  if (!made.from_logits)
    return with_weights(made.of_outputs(*from_logits).named(made.name).ignoring(made.ignored),
                        made.weighted);
  throw UsageError(
      fmt::format("metric {}: from_logits is {}, but the loss of the same output has {}; leave it "
                  "out, and it is as the loss has it",
                  name(), *made.from_logits, *from_logits));
}

Metric Metric::ignoring(std::optional<int64_t> label) const {
  if (!label || definition_->ignored) return *this;
  MetricDefinition definition = *definition_;
  definition.ignored = label;
  return Metric(std::move(definition));
}

Metric Metric::weighted() const {
  MetricDefinition definition = *definition_;
  definition.weighted = true;
  return Metric(std::move(definition));
}

void Metric::add(const SampleRows& rows, std::span<double> state) const {
  if (rows.rows == 0) return;
  const int64_t states = num_states(rows.width);
  if (std::ssize(state) != states)
    throw UsageError(fmt::format("metric {}: got {} states for outputs of width {}, expected {}",
                                 name(), state.size(), rows.width, states));
  if (!definition_->ignored || rows.labels == nullptr) return definition_->add(rows, state);
  for_each_stretch(rows, *definition_->ignored, [&](const SampleRows& stretch, int64_t first) {
    try {
      definition_->add(stretch, state);
    } catch (const detail::RowError& error) {
      throw error.of_part(first);
    }
  });
}

double Metric::value(std::span<const double> state) const {
  if (!scalar()) throw UsageError(fmt::format("metric {}: is a matrix, not one number", name()));
  return definition_->value(state);
}

Matrix Metric::matrix(std::span<const double> state) const {
  if (scalar()) throw UsageError(fmt::format("metric {}: is one number, not a matrix", name()));
  return definition_->matrix(state);
}

namespace metrics {

Metric accuracy() { return among_largest("accuracy", 1); }

Metric top_k_accuracy(int k) {
  require_k("top_k_accuracy", k);
  return among_largest(fmt::format("top_{}_accuracy", k), k);
}

Metric map_at_k(int k) {
  require_k("map_at_k", k);
  const std::string name = fmt::format("map_at_{}", k);
  return {name, [name, k](const SampleRows& rows, MetricSum& into) {
            add_by_place(name, k, rows, into,
                         [](int64_t place) { return 1.0 / static_cast<double>(place + 1); });
          }};
}

Metric perplexity(PerplexityOptions options) {
  MetricDefinition definition = definition_of(
      "perplexity",
      [from_logits = options.from_logits.value_or(false)](const SampleRows& rows, MetricSum& into) {
        const std::string name = "perplexity";
        detail::require_labels(name, rows);
        for (int64_t row = 0; row < rows.rows; ++row) {
          const int64_t label = detail::label_of(name, rows, row, rows.width);
          const float* outputs = rows.outputs + row * rows.width;
          const double weight = weight_of(rows, row);
          into.count += weight;
          into.sum += weight * (from_logits ? detail::crossentropy_of_row(outputs, rows.width,
                                                                          label, 1, nullptr)
                                            : -std::log(std::max(double{outputs[label]}, 1e-7)));
        }
      });
  definition.value = [](std::span<const double> state) {
    return state[1] == 0 ? 0 : std::exp(state[0] / state[1]);
  };
  return Metric(detail::following_loss(std::move(definition), options, perplexity));
}

Metric categorical_accuracy() {
  const std::string name = "categorical_accuracy";
  return {name, [name](const SampleRows& rows, MetricSum& into) {
            detail::require_targets(name, rows);
            for (int64_t row = 0; row < rows.rows; ++row) {
              const float* targets = rows.targets + row * rows.width;
              const int64_t right = detail::largest_of(targets, rows.width);
              if (right < 0)
                throw detail::RowError("metric " + name, row, "a target that is not a number");
              const double weight = weight_of(rows, row);
              into.count += weight;
              if (detail::largest_of(rows.outputs + row * rows.width, rows.width) == right)
                into.sum += weight;
            }
          }};
}

Metric binary_accuracy(BinaryOptions options) {
  const std::string name = "binary_accuracy";
  const float cut = detail::cut_of(name, options.threshold, options.from_logits);
  const auto add = [name, cut](const SampleRows& rows, MetricSum& into) {
    if (rows.labels != nullptr) {
      detail::require_binary(name, rows);
    } else {
      detail::require_targets(name, rows);
    }
    for (int64_t row = 0; row < rows.rows; ++row) {
      int64_t same = 0;
      for (int64_t i = row * rows.width; i < (row + 1) * rows.width; ++i) {
        const bool right = rows.labels != nullptr ? detail::is_yes(name, rows, row)
                                                  : detail::is_yes(name, rows.targets[i], row);
        same += detail::says_yes(rows.outputs[i], cut, right) == right;
      }
      const double weight = weight_of(rows, row);
      into.count += weight;
      into.sum += weight * static_cast<double>(same) / static_cast<double>(rows.width);
    }
  };
  return Metric(detail::following_loss(definition_of(name, add), options, binary_accuracy));
}

}  // namespace metrics
}  // namespace tutti
