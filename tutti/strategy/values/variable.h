/// Variable: a tensor of which every replica has a copy, and how the copies are kept together.
///
///   tutti::Variable seen(strategy, torch::zeros({}, torch::kLong),
///                        {.name = "seen", .synchronization =
///                        tutti::VariableSynchronization::on_read,
///                         .aggregation = tutti::VariableAggregation::sum});
///   strategy.run([&](tutti::ReplicaContext& replica) { seen.assign_add(replica, count); });
///   auto all = seen.read();                          // the sum over replicas
///
/// tf.distribute's rules. What models own follows them too: parameters are written by the Optimizer
/// alone, with the sum of gradients; buffers are on_read, floating ones (running statistics of
/// batch norms) with the mean and others with replica 0's value: ReplicatedModules::merged_buffers,
/// which save, evaluate and weights_sha256 read.
#pragma once

#include <torch/types.h>

#include <functional>
#include <memory>
#include <string>

#include "tutti/strategy/strategy.h"

namespace tutti {

enum class VariableSynchronization : uint8_t {
  on_write,  ///< copies are always equal: what replicas assign is aggregated first
  on_read,   ///< a replica writes its own copy; read() aggregates
};

enum class VariableAggregation : uint8_t {
  none,  ///< on_write: replicas may not assign; on_read: nobody may read() over several replicas
  sum,
  mean,  ///< floating dtypes
  only_first_replica,
};

struct VariableOptions {
  std::string name = "variable";  ///< for errors
  VariableSynchronization synchronization = VariableSynchronization::on_write;
  VariableAggregation aggregation = VariableAggregation::none;
};

/// Cheap to copy; copies are the same variable. Not trained: no gradient passes. Values must have
/// the variable's shape and dtype, else UsageError. It follows Strategy::resize: read() gives the
/// same afterwards. Collective calls, as marked, are made by all that they concern, in one order.
///
/// Thread rule: functions that take a ReplicaContext inside run(), each replica in its own thread;
/// the others outside, or inside merge(), else UsageError.
class Variable {
 public:
  /// Every replica begins with rank 0's `initial`. Collective over workers. UsageError for options
  /// that contradict each other, and where workers are not in step or may be lost.
  Variable(Strategy strategy, const at::Tensor& initial, const VariableOptions& options = {});

  /// This replica's copy, not to be written to.
  at::Tensor local(const ReplicaContext& replica) const;

  /// on_read: this replica's copy becomes `value`, or grows by it. on_write: every copy becomes the
  /// aggregate of what all replicas give, or grows by that; collective over replicas, and Mismatch
  /// on all of them when some assign and some add. Where
  /// replicas take turns (one_device) copies change once all have called, so each may call it once
  /// a run(), and must if any does.
  void assign(ReplicaContext& replica, const at::Tensor& value);
  void assign_add(ReplicaContext& replica, const at::Tensor& delta);

  /// on_write: the value. on_read: the aggregate over the replicas; collective over workers.
  at::Tensor read();

  /// read() is `value` afterwards (rank 0's, if workers give unlike ones). on_read with the sum:
  /// each copy becomes value / replicas, for integers with the rest on the lowest ranks; floating
  /// elements to which as many of these do not add up are whole on replica 0, and bools, whose sum
  /// is or, on all. So a value that was saved is restored to the bit. Collective over workers.
  void assign(const at::Tensor& value);

  /// fn(copy) for each copy of this worker, which it may change in place; no communication.
  /// on_write: Mismatch when copies differ afterwards.
  void update(const std::function<void(at::Tensor& copy)>& fn);

  const VariableOptions& options() const noexcept;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

// tf.distribute's extended.reduce_to and batch_reduce_to, outside of run() and in merge().

/// Strategy::reduce(), on `device`. Collective over workers.
at::Tensor reduce_to(Strategy& strategy, ReduceOp op, const PerReplica<at::Tensor>& values,
                     at::Device device);
/// The same into a variable, all of whose copies become the reduction; returns it, on the CPU.
at::Tensor reduce_to(Strategy& strategy, ReduceOp op, const PerReplica<at::Tensor>& values,
                     Variable& destination);

/// Values, and where their reduction goes.
struct ReduceTo {
  PerReplica<at::Tensor> values;
  at::Device device = at::kCPU;
};
/// All of them in one collective a dtype, with the bits of one each. Of as many, of one shape and
/// dtype each, on all replicas: else UsageError, and between workers, who tell each other first, a
/// Mismatch with the value.
std::vector<at::Tensor> batch_reduce_to(Strategy& strategy, ReduceOp op,
                                        const std::vector<ReduceTo>& pairs);

}  // namespace tutti
