/// RunningMetric: a metric in a loop of one's own, as Keras's update_state() and result().
///
///   RunningMetric accuracy(strategy, metrics::accuracy());
///   for (auto&& batch : data.epoch(epoch))
///     strategy.run([&](ReplicaContext& replica) {
///       ...
///       accuracy.update_state(replica, outputs, targets);
///     });
///   accuracy.result();       // of all samples of all replicas, exact
///   accuracy.reset_state();
#pragma once

#include <torch/types.h>

#include <memory>

#include "tutti/strategy/strategy.h"
#include "tutti/train/metrics/metrics.h"

namespace tutti {

/// Copies share their state. Thread rule: update_state() by each replica in its own thread, at the
/// same time; the rest by the strategy's, between runs.
class RunningMetric {
 public:
  /// UsageError under tpu, whose replicas are devices that run no functions.
  RunningMetric(Strategy strategy, Metric metric);
  /// Keras's Mean: of values, not of outputs and targets.
  static RunningMetric mean(Strategy strategy, std::string name = "mean");

  const std::string& name() const noexcept;

  /// Adds a replica's samples: outputs [samples, ...], targets as the metric takes them (labels,
  /// or floats), of any device; weights [samples], finite and >= 0, or none. A replica without
  /// samples need not call it. Throws what the metric throws; UsageError for shapes that do not go
  /// together, and for another world than it was made in.
  void update_state(const ReplicaContext& replica, const at::Tensor& outputs,
                    const at::Tensor& targets, const at::Tensor& weights = {});
  /// Of mean(), which takes no others: adds all elements of `values`, a scalar too; each counts 1.
  void update_state(const ReplicaContext& replica, const at::Tensor& values);

  /// What all samples since the last reset_state() give, the same bits for any strategy with as
  /// many replicas. Collective over workers. UsageError for a metric that is a matrix, and the
  /// other way round.
  double result();
  Matrix matrix();
  /// Forgets all samples. On every worker.
  void reset_state();

 private:
  struct State;
  explicit RunningMetric(std::shared_ptr<State> state) : state_(std::move(state)) {}
  std::shared_ptr<State> state_;
};

}  // namespace tutti
