#include "tutti/train/model/running_metric.h"

#include <fmt/format.h>

#include <cmath>
#include <utility>
#include <vector>

#include "tutti/base/error.h"
#include "tutti/train/model/detail/model_state.h"

namespace tutti {

struct RunningMetric::State {
  Strategy strategy;
  detail::Goals goals;  ///< one, whose loss nobody asks for
  bool of_values = false;
  std::vector<detail::Totals> each{};  ///< by local replica

  const Metric& metric() const { return goals[0].metrics[0]; }
  detail::OutputTotals& of(const ReplicaContext& replica) {
    strategy.require_own(replica, "update_state");
    const auto local = static_cast<size_t>(replica.local_rank());
    if (local >= each.size())
      throw UsageError(
          fmt::format("update_state: metric {} was made for {} replicas of this worker, this is "
                      "number {}; call "
                      "reset_state() after a resize",
                      metric().name(), each.size(), local + 1));
    each[local].outputs.resize(1);
    return each[local].outputs[0];
  }
};

namespace {

at::Tensor checked(const at::Tensor& weights, const at::Tensor& outputs) {
  if (!weights.defined()) return weights;
  if (weights.dim() != 1 || outputs.dim() == 0 || weights.size(0) != outputs.size(0))
    throw UsageError(fmt::format("update_state: weights {} for outputs {}; expected one a sample",
                                 c10::str(weights.sizes()), c10::str(outputs.sizes())));
  const at::Tensor plain = weights.detach().to(at::kCPU, at::kFloat);
  if (!(plain.isfinite() & plain.ge(0)).all().item<bool>())
    throw UsageError("update_state: a weight is below 0 or not finite");
  return plain;
}

void add_values(const SampleRows& rows, MetricSum& into) {
  for (int64_t i = 0; i < rows.rows * rows.width; ++i)
    into.sum += static_cast<double>(rows.outputs[i]);
  into.count += static_cast<double>(rows.rows * rows.width);
}

}  // namespace

RunningMetric::RunningMetric(Strategy strategy, Metric metric) {  // NOLINT: by value
  if (strategy.world().plugin != nullptr)
    throw UsageError(
        fmt::format("metric {}: under tpu replicas are devices that run compiled programs alone, "
                    "and no loop of "
                    "one's own adds to it; evaluate() has metrics",
                    metric.name()));
  state_ = std::make_shared<State>(State{.strategy = std::move(strategy), .goals = {}});
  state_->goals.push_back(
      {.name = "", .loss = losses::mean_squared_error(), .metrics = {metric.weighted()}});
  reset_state();
}

RunningMetric RunningMetric::mean(Strategy strategy, std::string name) {
  RunningMetric made(std::move(strategy), Metric(std::move(name), add_values));
  made.state_->of_values = true;
  return made;
}

const std::string& RunningMetric::name() const noexcept { return state_->metric().name(); }

void RunningMetric::update_state(const ReplicaContext& replica, const at::Tensor& outputs,
                                 const at::Tensor& targets, const at::Tensor& weights) {
  if (state_->of_values)
    throw UsageError(
        fmt::format("update_state: metric {} is a mean of values, without targets and weights; got "
                    "those of outputs and targets: give values alone",
                    name()));
  if (!outputs.defined() || !targets.defined())
    throw UsageError(
        fmt::format("update_state: metric {}: outputs or targets are undefined", name()));
  state_->of(replica).add_metrics(state_->goals[0].metrics, outputs, targets,
                                  checked(weights, outputs));
}

void RunningMetric::update_state(const ReplicaContext& replica, const at::Tensor& values) {
  if (!state_->of_values)
    throw UsageError(fmt::format(
        "update_state: metric {} is of outputs and targets; got values alone, which are for "
        "RunningMetric::mean()",
        name()));
  if (!values.defined()) throw UsageError("update_state: the values are undefined");
  const at::Tensor column = values.detach().reshape({-1, 1});
  state_->of(replica).add_metrics(state_->goals[0].metrics, column,
                                  at::zeros({column.size(0)}, at::kLong));
}

double RunningMetric::result() {
  if (!state_->metric().scalar())
    throw UsageError(fmt::format("result: metric {} is a matrix; call matrix()", name()));
  const PerReplica<detail::Totals> each(state_->each, state_->strategy.world().first_rank);
  return detail::means_of(detail::sum_over_world(state_->strategy, state_->goals, each),
                          state_->goals)
      .back()
      .second;
}

Matrix RunningMetric::matrix() {
  if (state_->metric().scalar())
    throw UsageError(fmt::format("matrix: metric {} is one number; call result()", name()));
  const PerReplica<detail::Totals> each(state_->each, state_->strategy.world().first_rank);
  return detail::scores_of(detail::sum_over_world(state_->strategy, state_->goals, each),
                           state_->goals)
      .matrix(name());
}

void RunningMetric::reset_state() {
  state_->each.assign(static_cast<size_t>(state_->strategy.world().local), {});
}

}  // namespace tutti
