#include "tutti/train/model/detail/late_totals.h"

#include <torch/types.h>

#include <algorithm>
#include <cmath>

#include "tutti/train/losses/detail/loss_parts.h"

namespace tutti::detail {
namespace {

/// Outputs of so many bytes are read for the words of an error alone: they cost no more than a
/// launch.
constexpr size_t kSmallOutput = 1 << 20;

/// By their place in what forward gives: what the host reads of it, the rest undefined.
Tensors read_of(const Goals& goals, const Tensors& outputs) {
  Tensors read(outputs.size());
  for (const Goal& goal : goals)
    if (const at::Tensor& output = goal.output(outputs);
        !goal.metrics.empty() || output.nbytes() <= kSmallOutput)
      read.at(goal.place) = output;
  return read;
}

}  // namespace

std::shared_ptr<const OwnBatch> host_batch(Tensors columns, int64_t num_inputs, const Goals& goals,
                                           const LabelWeights& by_label) {
  auto batch = std::make_shared<OwnBatch>();
  batch->columns = std::move(columns);
  batch->parts = parts_of(batch->columns, num_inputs, goals, by_label);
  return batch;
}

std::shared_ptr<const OwnBatch> device_batch(const ReplicaContext& replica,
                                             const BatchParts& host) {
  Tensors all = host.inputs.vec();
  all.insert(all.end(), host.targets.begin(), host.targets.end());
  all.insert(all.end(), host.own_weights.begin(), host.own_weights.end());
  all.push_back(host.weights);
  auto batch = std::make_shared<OwnBatch>();
  batch->columns = replica.on_device(all);
  const at::TensorList there = batch->columns;
  batch->parts = {
      .inputs = there.slice(0, host.inputs.size()),
      .targets = there.slice(host.inputs.size(), host.targets.size()),
      .weights = there.back(),
      .own_weights =
          there.slice(host.inputs.size() + host.targets.size(), host.own_weights.size()).vec()};
  return batch;
}

Tensors losses_on_device(const Goals& goals, const Tensors& outputs, const BatchParts& host,
                         const BatchParts& there) {
  Tensors losses;
  for (size_t i = 0; i < goals.size(); ++i) {
    const LossKernel& kernel = goals[i].loss.kernel();
    const at::Tensor& output = goals[i].output(outputs);
    kernel.check_targets(output, host.targets[i]);
    losses.push_back(kernel.per_sample(output, there.targets[i]));
  }
  return losses;
}

at::Tensor scaled_loss(const Goals& goals, const Tensors& losses, const BatchParts& parts,
                       std::span<const double> scales) {
  at::Tensor loss;
  for (size_t i = 0; i < goals.size(); ++i) {
    const at::Tensor& weights = parts.weights_of(i);
    const at::Tensor weighted =
        weights.defined() ? losses[i] * weights.to(losses[i].scalar_type()) : losses[i];
    const at::Tensor one = weighted.sum() * (goals[i].weight * scales[i]);
    loss = loss.defined() ? loss + one : one;
  }
  return loss;
}

at::Tensor scaled_loss(const Goals& goals, const Tensors& losses, const BatchParts& parts,
                       double scale) {
  return scaled_loss(goals, losses, parts, std::vector<double>(goals.size(), scale));
}

// A sum in double is finite where all that it is of is: floats cannot make it overflow. Less it,
// that is 0, or NaN. Each operator more is a launch.
at::Tensor any_not_finite(const Tensors& losses) {
  const at::NoGradGuard no_grad;
  at::Tensor sum;
  for (const at::Tensor& loss : losses) {
    const at::Tensor one = loss.detach().sum(at::kDouble);
    sum = sum.defined() ? sum + one : one;
  }
  return (sum - sum).ne(0);  // NOLINT(misc-redundant-expression)
}

bool Figures::finite(const Goals& goals) const {
  double sum = 0;
  for (size_t i = 0; i < goals.size(); ++i) sum += goals[i].weight * sums[i];
  return std::isfinite(sum);
}

void Figures::add_to(Totals& totals, const Goals& goals) const {
  const GivenMetrics given(added);
  totals.outputs.resize(goals.size());
  const int64_t samples = losses[0].numel();
  totals.samples += samples;
  for (size_t i = 0; i < goals.size(); ++i) {
    totals.outputs[i].add_loss(goals[i].loss.kernel(), batch->parts.targets[i], sums[i]);
    if (samples > 0 && !goals[i].metrics.empty())
      totals.outputs[i].add_metrics(goals[i].metrics, goals[i].output(outputs),
                                    batch->parts.targets[i], batch->parts.weights_of(i));
  }
  given.require_read();
}

void read_later(LateReads& late, const Goals& goals, std::shared_ptr<const OwnBatch> host,
                const Tensors& losses, const Tensors& outputs, const AddedMetrics& added,
                std::function<void(Figures)> got) {
  Tensors values = losses;
  for (const at::Tensor& output : read_of(goals, outputs)) values.push_back(output);
  std::vector<std::string> names;
  for (const auto& [name, given] : added) {
    names.push_back(name);
    values.push_back(given);
  }
  const auto read = [host = std::move(host), got = std::move(got), names = std::move(names),
                     count = static_cast<int64_t>(losses.size())](const Tensors& copies) {
    const auto split = copies.begin() + count, given = copies.end() - std::ssize(names);
    Figures figures{
        .batch = host, .losses = {copies.begin(), split}, .outputs = {split, given}, .sums = {}};
    for (size_t i = 0; i < names.size(); ++i)
      figures.added.emplace(names[i], *(given + static_cast<int64_t>(i)));
    for (const at::Tensor& loss : figures.losses)
      figures.sums.push_back(sum_in_order(
          loss, sample_weights(host->parts.weights_of(figures.sums.size()), loss.numel())));
    got(std::move(figures));
  };
  late.add(values, read);
}

}  // namespace tutti::detail
