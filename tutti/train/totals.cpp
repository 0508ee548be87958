// What replicas add up over samples: loss, metrics, and their sums over the world.
#include <fmt/format.h>
#include <torch/types.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "tutti/base/error.h"
#include "tutti/train/model_state.h"

namespace tutti::detail {

namespace {

/// On the CPU, contiguous and of that dtype; itself where it is so already.
at::Tensor plain(const at::Tensor& tensor, at::ScalarType dtype) {
  if (tensor.scalar_type() == dtype && tensor.is_cpu() && tensor.is_contiguous()) return tensor;
  return tensor.detach().to(at::kCPU, dtype).contiguous();
}

}  // namespace

void Totals::add_metrics(const std::vector<Metric>& all, const at::Tensor& output,
                         const at::Tensor& target) {
  const int64_t rows = output.dim() > 0 ? output.size(0) : 0;
  if (all.empty() || rows == 0) return;
  if (target.dim() > 0 && target.size(0) != rows)
    throw UsageError(
        fmt::format("metrics: got outputs of {} samples and targets of {}", rows, target.size(0)));
  const at::Tensor values = plain(output, at::kFloat);
  SampleRows samples{.outputs = values.const_data_ptr<float>(), .rows = rows};
  samples.width = values.numel() / rows;
  at::Tensor wanted;
  if (target.scalar_type() == at::kLong && target.dim() == 1) {
    wanted = plain(target, at::kLong);
    samples.labels = wanted.const_data_ptr<int64_t>();
  } else if (at::isFloatingType(target.scalar_type())) {
    wanted = plain(target, at::kFloat);
    samples.targets = wanted.const_data_ptr<float>();
    samples.target_width = wanted.numel() / rows;
  }
  if (samples.width != width || states.empty()) {
    const int64_t count = num_states(all, samples.width);
    if (!states.empty() && std::ssize(states) != count)
      throw UsageError(fmt::format(
          "metrics: got outputs of {} values a sample after those of {}; the states of these "
          "metrics are made for one width",
          samples.width, width));
    states.resize(static_cast<size_t>(count));
    width = samples.width;
  }
  std::span<double> rest(states);
  for (const Metric& metric : all) {
    const auto count = static_cast<size_t>(metric.num_states(width));
    metric.add(samples, rest.first(count));
    rest = rest.subspan(count);
  }
}

void Totals::add(const Totals& other) {
  loss += other.loss;
  samples += other.samples;
  width = std::max(width, other.width);
  states.resize(std::max(states.size(), other.states.size()));
  for (size_t i = 0; i < other.states.size(); ++i) states[i] += other.states[i];
}

// The width is a sum too: of those that know it, with their number.
std::vector<double> Totals::packed(int64_t num_states) const {
  std::vector<double> values{loss, static_cast<double>(samples), static_cast<double>(signal),
                             static_cast<double>(width), width > 0 ? 1.0 : 0.0};
  values.reserve(values.size() + static_cast<size_t>(num_states));
  values.insert(values.end(), states.begin(), states.end());
  values.resize(values.size() + static_cast<size_t>(num_states) - states.size());
  return values;
}

Totals Totals::unpacked(std::span<const double> values) {
  constexpr size_t kHeader = 5;
  if (values.size() < kHeader) return {};
  Totals all{.loss = values[0],
             .samples = static_cast<int64_t>(values[1]),
             .signal = static_cast<int>(values[2])};
  if (values[4] > 0) {
    all.width = static_cast<int64_t>(values[3] / values[4]);
    all.states.assign(values.begin() + kHeader, values.end());
  }
  return all;
}

int64_t num_states(const std::vector<Metric>& metrics, int64_t width) {
  int64_t count = 0;
  for (const Metric& metric : metrics) count += metric.num_states(width);
  return count;
}

bool sized_by_width(const std::vector<Metric>& metrics) {
  constexpr int64_t kWide = 1'000'003;  // no metric has states for so many only from there on
  return std::ranges::any_of(metrics, [](const Metric& metric) {
    return metric.num_states(1) != metric.num_states(kWide);
  });
}

namespace {

/// That of all replicas which have seen outputs; 0 where none has. Collective over workers.
int64_t width_over_world(Strategy& strategy, const PerReplica<Totals>& each) {
  constexpr double kNone = -std::numeric_limits<double>::infinity();
  std::vector<std::array<double, 2>> both;  // the widest, and less than nothing by the narrowest
  for (const Totals& totals : each.values()) {
    const auto width = static_cast<double>(totals.width);
    both.push_back(width > 0 ? std::array{width, -width} : std::array{kNone, kNone});
  }
  const auto [widest, narrowest] = strategy.reduce(
      ReduceOp::max, PerReplica<std::array<double, 2>>(std::move(both), each.first_rank()));
  if (widest == kNone) return 0;
  if (widest != -narrowest)
    throw UsageError(
        fmt::format("metrics: outputs have {} values a sample in one replica and {} in another",
                    -narrowest, widest));
  return static_cast<int64_t>(widest);
}

}  // namespace

Totals sum_over_world(Strategy& strategy, const std::vector<Metric>& metrics,
                      const PerReplica<Totals>& each) {
  // A replica may have had no sample, and then does not know how many states the others have.
  const int64_t width = sized_by_width(metrics) ? width_over_world(strategy, each) : 1;
  std::vector<at::Tensor> packed;
  for (const Totals& totals : each.values())
    packed.push_back(at::tensor(totals.packed(num_states(metrics, width)), at::kDouble));
  const at::Tensor sums =
      strategy.reduce(ReduceOp::sum, PerReplica<at::Tensor>(std::move(packed), each.first_rank()));
  return Totals::unpacked({sums.data_ptr<double>(), static_cast<size_t>(sums.numel())});
}

std::span<const double> state_of(const Totals& totals, const std::vector<Metric>& metrics,
                                 size_t number) {
  if (totals.states.empty()) return {};
  int64_t before = 0;
  for (size_t m = 0; m < number; ++m) before += metrics[m].num_states(totals.width);
  return std::span(totals.states)
      .subspan(static_cast<size_t>(before),
               static_cast<size_t>(metrics[number].num_states(totals.width)));
}

NamedValues means_of(const Totals& totals, const std::vector<Metric>& metrics,
                     const std::string& prefix) {
  const auto samples = static_cast<double>(totals.samples);
  NamedValues values{{prefix + "loss", totals.samples == 0 ? 0 : totals.loss / samples}};
  for (size_t m = 0; m < metrics.size(); ++m) {
    if (!metrics[m].scalar()) continue;
    const auto state = state_of(totals, metrics, m);
    values.emplace_back(prefix + metrics[m].name(), state.empty() ? 0 : metrics[m].value(state));
  }
  return values;
}

Scores scores_of(const Totals& totals, const std::vector<Metric>& metrics) {
  NamedValues values = means_of(totals, metrics, "");
  Scores scores{.loss = values[0].second, .samples = totals.samples};
  scores.metrics.assign(values.begin() + 1, values.end());
  for (size_t m = 0; m < metrics.size(); ++m) {
    if (!metrics[m].scalar())
      scores.matrices.emplace_back(metrics[m].name(),
                                   metrics[m].matrix(state_of(totals, metrics, m)));
  }
  return scores;
}

at::Tensor sample_weights(std::span<const at::Tensor> columns,
                          const std::map<int64_t, double>& class_weight) {
  if (columns.size() > 2) {
    const at::Tensor weights = plain(columns[2], at::kFloat);
    const float* const weight = weights.const_data_ptr<float>();
    for (int64_t row = 0; row < weights.numel(); ++row)
      if (!(weight[row] >= 0 && std::isfinite(weight[row])))
        throw DataError(
            fmt::format("sample weights: row {} of the batch has {}; expected a finite number >= 0",
                        row, weight[row]));
    return weights;
  }
  if (class_weight.empty()) return {};
  const at::Tensor labels = plain(columns[1], at::kLong);
  const at::Tensor weights = at::ones({labels.numel()}, at::kFloat);
  for (int64_t row = 0; row < labels.numel(); ++row)
    if (const auto found = class_weight.find(labels.const_data_ptr<int64_t>()[row]);
        found != class_weight.end())
      weights.data_ptr<float>()[row] = static_cast<float>(found->second);
  return weights;
}

}  // namespace tutti::detail
