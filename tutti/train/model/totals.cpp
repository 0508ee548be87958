// What replicas add up over samples: loss, metrics, and their sums over the world.
#include <fmt/format.h>
#include <torch/types.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "tutti/base/error.h"
#include "tutti/train/losses/detail/loss_parts.h"
#include "tutti/train/losses/detail/samples.h"
#include "tutti/train/model/detail/model_state.h"

namespace tutti::detail {

namespace {

/// On the CPU, contiguous and of that dtype; itself where it is so already.
at::Tensor plain(const at::Tensor& tensor, at::ScalarType dtype) {
  if (tensor.scalar_type() == dtype && tensor.is_cpu() && tensor.is_contiguous()) return tensor;
  return tensor.detach().to(at::kCPU, dtype).contiguous();
}

/// Labels of a sample: those of [batch, ..., classes] and [batch, ...]; else 1.
int64_t positions_of(const at::Tensor& output, const at::Tensor& target) {
  const bool sequences =
      target.dim() >= 2 && output.dim() == target.dim() + 1 &&
      output.sizes().slice(0, static_cast<size_t>(target.dim())) == target.sizes();
  return sequences ? target.numel() / target.size(0) : 1;
}

int64_t num_states(const std::vector<Metric>& metrics, int64_t width) {
  int64_t count = 0;
  for (const Metric& metric : metrics) count += metric.num_states(std::max<int64_t>(width, 1));
  return count;
}

/// Of one metric, 128 MiB in each replica: a confusion matrix of 4096 classes.
constexpr int64_t kMostStates = int64_t{1} << 24;

/// What to do about a metric that keeps more.
std::string words_of_less(const Metric& metric, int64_t width) {
  const int64_t states = metric.num_states(width);
  if (metric.num_states(2 * width) != 2 * states)
    return fmt::format(
        " ({} classes squared); leave it out, and count in a program of your own over "
        "predict()",
        std::lround(std::sqrt(kMostStates)));
  return fmt::format(
      ", {} of each value, of which it keeps {}; give it fewer bins (average_precision: .bins, "
      "auc: "
      ".num_thresholds), or leave it out",
      kMostStates / width, states / width);
}

}  // namespace

void require_room(std::string_view operation, const std::vector<Metric>& metrics, int64_t width) {
  for (const Metric& metric : metrics) {
    const int64_t states = metric.num_states(width);
    if (states >= 0 && states <= kMostStates) continue;
    constexpr double kGib = 1 << 30;
    throw UsageError(fmt::format(
        "{}: metric {} of outputs of {} values keeps {} numbers ({:.1f} GiB) in each replica, at "
        "most {} are allowed{}",
        operation, metric.name(), width, states, 8 * static_cast<double>(states) / kGib,
        kMostStates, words_of_less(metric, width)));
  }
}

int64_t labels_a_sample(const at::Tensor& target) {
  return target.dim() == 0 || target.size(0) == 0 ? 1 : target.numel() / target.size(0);
}

bool counts_labels(const Goals& goals) {
  return std::ranges::any_of(
      goals, [](const Goal& goal) { return goal.loss.kernel().counted({}).has_value(); });
}

// Kernels give means over a sample's positions: times those, sums.
double Divisors::scale(const Goals& goals, size_t number, const at::Tensor& target) const {
  if (counted.empty() || !goals[number].loss.kernel().counted({})) return 1.0 / samples;
  return counted[number] == 0 ? 0 : static_cast<double>(labels_a_sample(target)) / counted[number];
}

void OutputTotals::add_loss(const LossKernel& kernel, const at::Tensor& target, double sum) {
  const auto labels = kernel.counted(target);
  loss += labels ? sum * static_cast<double>(labels_a_sample(target)) : sum;
  if (labels) counted += static_cast<double>(*labels);
}

void OutputTotals::add_metrics(const std::vector<Metric>& all, const at::Tensor& output,
                               const at::Tensor& target, const at::Tensor& weights) {
  const int64_t rows = output.dim() > 0 ? output.size(0) : 0;
  if (all.empty() || rows == 0) return;
  if (target.dim() > 0 && target.size(0) != rows)
    throw UsageError(
        fmt::format("metrics: got outputs of {} samples and targets of {}", rows, target.size(0)));
  const at::Tensor values = plain(output, at::kFloat);
  const bool integers = at::isIntegralType(target.scalar_type(), /*includeBool=*/true);
  const int64_t positions = integers ? positions_of(output, target) : 1;
  SampleRows samples{.outputs = values.const_data_ptr<float>(), .rows = rows * positions};
  samples.width = values.numel() / samples.rows;
  const bool weigh = weights.defined() && std::ranges::any_of(all, &Metric::is_weighted);
  const at::Tensor each =
      weigh ? plain(weights.repeat_interleave(positions), at::kFloat) : at::Tensor();
  at::Tensor wanted;
  const bool one_each = target.dim() == 1 || (target.dim() == 2 && target.size(1) == 1);
  if (integers && (one_each || positions > 1)) {
    wanted = plain(target, at::kLong);
    samples.labels = wanted.const_data_ptr<int64_t>();
  } else if (at::isFloatingType(target.scalar_type())) {
    wanted = plain(target, at::kFloat);
    samples.targets = wanted.const_data_ptr<float>();
    samples.target_width = wanted.numel() / rows;
  }
  if (samples.width != width || states.empty()) {
    require_room("metrics", all, samples.width);
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
    samples.weights = weigh && metric.is_weighted() ? each.const_data_ptr<float>() : nullptr;
    try {
      metric.add(samples, rest.first(count));
    } catch (const RowError& error) {
      throw error.of_samples(positions);
    }
    rest = rest.subspan(count);
  }
}

void OutputTotals::add(const OutputTotals& other) {
  loss += other.loss;
  counted += other.counted;
  width = std::max(width, other.width);
  states.resize(std::max(states.size(), other.states.size()));
  for (size_t i = 0; i < other.states.size(); ++i) states[i] += other.states[i];
}

at::Tensor Totals::add_losses(const Goals& goals, const Tensors& outputs_in,
                              const BatchParts& parts, const Divisors& by) {
  outputs.resize(goals.size());
  at::Tensor loss;
  for (size_t i = 0; i < goals.size(); ++i) {
    const Goal& goal = goals[i];
    const at::Tensor& target = parts.targets[i];
    double sum = 0;  // of these samples, which is rounded before it is added to the others
    const at::Tensor one = goal.loss.kernel().scaled_sum(goal.output(outputs_in), target,
                                                         goal.weight * by.scale(goals, i, target),
                                                         sum, parts.weights_of(i));
    outputs[i].add_loss(goal.loss.kernel(), target, sum);
    loss = loss.defined() ? loss + one : one;
  }
  return loss;
}

void Totals::add_losses(const Goals& goals, const Tensors& outputs_in, const BatchParts& parts) {
  outputs.resize(goals.size());
  for (size_t i = 0; i < goals.size(); ++i) {
    const LossKernel& kernel = goals[i].loss.kernel();
    double sum = 0;
    kernel.add_to(goals[i].output(outputs_in), parts.targets[i], sum, parts.weights_of(i));
    outputs[i].add_loss(kernel, parts.targets[i], sum);
  }
}

void Totals::add_metrics(const Goals& goals, const Tensors& outputs_in, const BatchParts& parts) {
  const GivenMetrics given(parts.added);
  outputs.resize(goals.size());
  for (size_t i = 0; i < goals.size(); ++i)
    outputs[i].add_metrics(goals[i].metrics, goals[i].output(outputs_in), parts.targets[i],
                           parts.weights_of(i));
  given.require_read();
}

void Totals::add_known(const at::Tensor& losses, const at::Tensor& weights) {
  outputs.resize(1);
  outputs[0].loss += sum_in_order(losses, sample_weights(weights, losses.numel()));
}

void Totals::add(const Totals& other) {
  samples += other.samples;
  outputs.resize(std::max(outputs.size(), other.outputs.size()));
  for (size_t i = 0; i < other.outputs.size(); ++i) outputs[i].add(other.outputs[i]);
}

double Totals::loss(const Goals& goals) const {
  double sum = 0;
  for (size_t i = 0; i < outputs.size(); ++i) sum += goals[i].weight * outputs[i].loss;
  return sum;
}

std::vector<int64_t> Totals::widths(const Goals& goals) const {
  std::vector<int64_t> all(goals.size(), 0);
  for (size_t i = 0; i < outputs.size(); ++i) all[i] = outputs[i].width;
  return all;
}

/// Outputs whose losses are means over what counts.
std::vector<size_t> counting(const Goals& goals) {
  std::vector<size_t> all;
  for (size_t i = 0; i < goals.size(); ++i)
    if (goals[i].loss.kernel().counted({})) all.push_back(i);
  return all;
}

size_t header_of(const Goals& goals) { return 2 + 3 * goals.size() + counting(goals).size(); }

// Samples and signal; of each output its loss, and its width, which is a sum too: of those that
// know it, with their number; what counts for the losses that ask; then the states of all.
std::vector<double> Totals::packed(const Goals& goals, std::span<const int64_t> widths) const {
  std::vector<double> values{static_cast<double>(samples), static_cast<double>(signal)};
  static const OutputTotals none;
  const auto output = [&](size_t i) -> const OutputTotals& {
    return i < outputs.size() ? outputs[i] : none;
  };
  for (size_t i = 0; i < goals.size(); ++i)
    values.insert(values.end(), {output(i).loss, static_cast<double>(output(i).width),
                                 output(i).width > 0 ? 1.0 : 0.0});
  for (const size_t i : counting(goals)) values.push_back(output(i).counted);
  for (size_t i = 0; i < goals.size(); ++i) {
    const std::vector<double>& states = output(i).states;
    const auto end = values.size() + static_cast<size_t>(num_states(goals[i].metrics, widths[i]));
    values.insert(values.end(), states.begin(), states.end());
    values.resize(end);
  }
  return values;
}

Totals Totals::unpacked(const Goals& goals, std::span<const double> values) {
  const size_t header = header_of(goals);
  if (values.size() < header) return {};
  Totals all{.outputs = std::vector<OutputTotals>(goals.size()),
             .samples = static_cast<int64_t>(values[0]),
             .signal = static_cast<int>(values[1])};
  auto counted = values.begin() + 2 + 3 * std::ssize(goals);
  for (const size_t i : counting(goals)) all.outputs[i].counted = *counted++;
  auto states = values.subspan(header);
  for (size_t i = 0; i < goals.size(); ++i) {
    const auto about = values.subspan(2 + 3 * i, 3);
    OutputTotals& output = all.outputs[i];
    output.loss = about[0];
    if (about[2] > 0) output.width = static_cast<int64_t>(about[1] / about[2]);
    const auto count = static_cast<size_t>(num_states(goals[i].metrics, output.width));
    const auto own = states.first(std::min(count, states.size()));
    if (output.width > 0) output.states.assign(own.begin(), own.end());
    states = states.subspan(own.size());
  }
  return all;
}

std::string Totals::why_not_packed(const Goals& goals, std::span<const double> values) {
  constexpr double kWidest = 1 << 28;
  size_t expected = header_of(goals);
  for (size_t i = 0; i < goals.size() && expected <= values.size(); ++i) {
    const double width = values[2 + 3 * i + 1], seen = values[2 + 3 * i + 2];
    const bool good = width == 0 ? seen == 0 : seen == 1 && width == std::floor(width);
    if (!good || !(width >= 0 && width <= kWidest))
      return fmt::format("outputs of width {} seen {} times", width, seen);
    expected += static_cast<size_t>(num_states(goals[i].metrics, static_cast<int64_t>(width)));
  }
  if (values.size() == expected) return "";
  return fmt::format("{} numbers, expected {}", values.size(), expected);
}

bool sized_by_width(const std::vector<Metric>& metrics) {
  constexpr int64_t kWide = 1'000'003;  // no metric has states for so many only from there on
  return std::ranges::any_of(metrics, [](const Metric& metric) {
    return metric.num_states(1) != metric.num_states(kWide);
  });
}

namespace {

/// That of all replicas which have seen outputs; 0 where none has. Collective over workers.
int64_t width_over_world(Strategy& strategy, const PerReplica<Totals>& each, const Goals& goals,
                         size_t goal) {
  constexpr double kNone = -std::numeric_limits<double>::infinity();
  std::vector<std::array<double, 2>> both;  // the widest, and less than nothing by the narrowest
  for (const Totals& totals : each.values()) {
    const auto width = static_cast<double>(totals.widths(goals)[goal]);
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

/// The state of metric `number`; empty before the first sample.
std::span<const double> state_of(const OutputTotals& totals, const std::vector<Metric>& metrics,
                                 size_t number) {
  if (totals.states.empty()) return {};
  int64_t before = 0;
  for (size_t m = 0; m < number; ++m) before += metrics[m].num_states(totals.width);
  return std::span(totals.states)
      .subspan(static_cast<size_t>(before),
               static_cast<size_t>(metrics[number].num_states(totals.width)));
}

}  // namespace

Totals sum_over_world(Strategy& strategy, const Goals& goals, const PerReplica<Totals>& each) {
  // A replica may have had no sample, and then does not know how many states the others have.
  std::vector<int64_t> widths(goals.size(), 1);
  for (size_t i = 0; i < goals.size(); ++i)
    if (sized_by_width(goals[i].metrics)) widths[i] = width_over_world(strategy, each, goals, i);
  std::vector<at::Tensor> packed;
  for (const Totals& totals : each.values())
    packed.push_back(at::tensor(totals.packed(goals, widths), at::kDouble));
  const at::Tensor sums =
      strategy.reduce(ReduceOp::sum, PerReplica<at::Tensor>(std::move(packed), each.first_rank()));
  return Totals::unpacked(goals, {sums.data_ptr<double>(), static_cast<size_t>(sums.numel())});
}

std::vector<std::string> quantities_of(const Goals& goals) {
  std::vector<std::string> names{"loss"};
  for (const Goal& goal : goals)
    if (!goal.name.empty()) names.push_back(goal.quantity("loss"));
  for (const Goal& goal : goals)
    for (const Metric& metric : goal.metrics)
      if (metric.scalar()) names.push_back(goal.quantity(metric.name()));
  return names;
}

NamedValues means_of(const Totals& totals, const Goals& goals) {
  static const OutputTotals none;
  const auto output = [&](size_t i) -> const OutputTotals& {
    return i < totals.outputs.size() ? totals.outputs[i] : none;
  };
  const auto quotient = [](double sum, double count) { return count == 0 ? 0 : sum / count; };
  const auto mean = [&](double sum) { return quotient(sum, static_cast<double>(totals.samples)); };
  const auto counts = [&](size_t i) { return goals[i].loss.kernel().counted({}).has_value(); };
  const auto mean_of = [&](size_t i) {
    return counts(i) ? quotient(output(i).loss, output(i).counted) : mean(output(i).loss);
  };
  double over_samples = 0, over_labels = 0;
  for (size_t i = 0; i < goals.size(); ++i)
    counts(i) ? over_labels += goals[i].weight * mean_of(i)
              : over_samples += goals[i].weight * output(i).loss;
  std::vector<double> values{mean(over_samples) + over_labels};
  for (size_t i = 0; i < goals.size(); ++i)
    if (!goals[i].name.empty()) values.push_back(mean_of(i));
  for (size_t i = 0; i < goals.size(); ++i) {
    const auto& metrics = goals[i].metrics;
    for (size_t m = 0; m < metrics.size(); ++m) {
      if (!metrics[m].scalar()) continue;
      const auto state = state_of(output(i), metrics, m);
      values.push_back(state.empty() ? 0 : metrics[m].value(state));
    }
  }
  NamedValues named;
  const auto names = quantities_of(goals);
  for (size_t i = 0; i < names.size(); ++i) named.emplace_back(names[i], values[i]);
  return named;
}

Scores scores_of(const Totals& totals, const Goals& goals) {
  NamedValues values = means_of(totals, goals);
  Scores scores{.loss = values[0].second, .samples = totals.samples};
  scores.metrics.assign(values.begin() + 1, values.end());
  for (size_t i = 0; i < totals.outputs.size(); ++i) {
    const auto& metrics = goals[i].metrics;
    for (size_t m = 0; m < metrics.size(); ++m)
      if (!metrics[m].scalar())
        scores.matrices.emplace_back(goals[i].quantity(metrics[m].name()),
                                     metrics[m].matrix(state_of(totals.outputs[i], metrics, m)));
  }
  return scores;
}

namespace {

at::Tensor checked_weights(const at::Tensor& column) {
  const at::Tensor weights = plain(column, at::kFloat);
  const float* const weight = weights.const_data_ptr<float>();
  for (int64_t row = 0; row < weights.numel(); ++row)
    if (!(weight[row] >= 0 && std::isfinite(weight[row])))
      throw RowError("sample weights", row,
                     fmt::format("{}; expected a finite number >= 0", weight[row]));
  return weights;
}

at::Tensor weights_by_label(const at::Tensor& target,
                            const std::map<int64_t, double>& class_weight) {
  const at::Tensor labels = plain(target, at::kLong);
  const at::Tensor weights = at::ones({labels.numel()}, at::kFloat);
  for (int64_t row = 0; row < labels.numel(); ++row)
    if (const auto found = class_weight.find(labels.const_data_ptr<int64_t>()[row]);
        found != class_weight.end())
      weights.data_ptr<float>()[row] = static_cast<float>(found->second);
  return weights;
}

}  // namespace

bool has_mask(at::TensorList columns, int64_t num_inputs, const Goals& goals) {
  return columns.size() > static_cast<size_t>(num_inputs) + goals.size() &&
         columns.back().scalar_type() == at::kBool;
}

Tensors targets_of(at::TensorList columns, int64_t num_inputs, const Goals& goals) {
  Tensors targets = columns.slice(static_cast<size_t>(num_inputs), goals.size()).vec();
  if (!has_mask(columns, num_inputs, goals)) return targets;
  const at::Tensor left_out = columns.back().logical_not();
  for (size_t i = 0; i < goals.size(); ++i)
    targets[i] = targets[i].to(at::kLong).masked_fill(
        left_out, goals[i].loss.kernel().ignored_label().value());
  return targets;
}

LabelWeights label_weights_of(const Goals& goals, const FitOptions& options) {
  if (!options.class_weight.empty()) return {options.class_weight};
  if (options.class_weights.empty()) return {};
  LabelWeights by_label;
  for (const Goal& goal : goals) {
    const auto own = options.class_weights.find(goal.name);
    by_label.push_back(own == options.class_weights.end() ? std::map<int64_t, double>()
                                                          : own->second);
  }
  return by_label;
}

BatchParts parts_of(at::TensorList columns, int64_t num_inputs, const Goals& goals,
                    const LabelWeights& by_label) {
  const auto inputs = static_cast<size_t>(num_inputs);
  BatchParts parts{.inputs = columns.slice(0, inputs),
                   .targets = columns.slice(inputs, goals.size()),
                   .weights = {}};
  if (has_mask(columns, num_inputs, goals)) {
    parts.masked = std::make_shared<const Tensors>(targets_of(columns, num_inputs, goals));
    parts.targets = *parts.masked;
  } else if (columns.size() > inputs + goals.size()) {
    parts.weights = checked_weights(columns.back());
  } else if (by_label.size() == 1) {
    parts.weights = weights_by_label(parts.targets[0], by_label[0]);
  } else {
    for (size_t i = 0; i < by_label.size(); ++i)
      parts.own_weights.push_back(
          by_label[i].empty() ? at::Tensor() : weights_by_label(parts.targets[i], by_label[i]));
  }
  return parts;
}

}  // namespace tutti::detail
