/// What a function that runs on a replica knows of itself, and what the replicas return.
///
/// Two contexts, as in tf.distribute. *Replica context*: inside Strategy::run, on a replica's
/// thread; a ReplicaContext says which one. *Cross-replica context*: outside of run, and inside
/// Strategy::merge, where one thread a worker speaks for all of its replicas. Functions that take a
/// ReplicaContext are for the first, methods of Strategy for the second; one that is called in the
/// other context throws UsageError.
#pragma once

#include <torch/types.h>

#include <memory>
#include <string_view>
#include <vector>

#include "tutti/comm/group/group.h"
#include "tutti/mesh/mesh.h"
#include "tutti/queues/queue.h"

namespace tutti {

/// Cheap to copy; copies are the same replica. Used by the replica's thread alone.
class ReplicaContext {
 public:
  /// In the world, 0 to its size - 1: the replica's number, but on a mesh, where several ranks
  /// compute one.
  int rank() const noexcept;
  int replica() const noexcept;     ///< 0 to num_replicas_in_sync() - 1
  int local_rank() const noexcept;  ///< among the replicas of this worker
  int num_replicas_in_sync() const noexcept;
  Millis time_limit() const noexcept;  ///< of every wait for another replica

  /// The replica on whose thread the caller runs; null in cross-replica context.
  static ReplicaContext* current() noexcept;

  /// This replica's own random numbers, seeded by (seed, rank). With several replicas LibTorch's
  /// operators draw from it in run() unless they are given another. The default generator is one a
  /// process: thread replicas that draw from it by themselves would race, and run() reports that as
  /// an error.
  at::Generator& generator();
  /// The same for tensors on `device`, the CPU or this replica's own.
  at::Generator& generator(at::Device device);

  /// The collective group of all replicas; where workers may be lost
  /// (ServedOptions::on_lost_worker) of this worker's. What is given no limit has time_limit().
  /// UsageError when replicas take turns on one thread.
  Group& group();

  /// The group of all replicas in sync, for an operation that each of them takes part in. Throws
  /// UsageError naming `operation` where that cannot be: replicas take turns on one thread, or
  /// workers are not in step or may be lost (parameter_server with a staleness, with late gradients
  /// dropped, or going on without a worker).
  Group& group_of_all(std::string_view operation);

  /// From now on backward passes of this replica wait for those of all others, as autograd through
  /// a collective does; said in the forward pass, by every replica. Optimizer::minimize then
  /// reduces gradients after backward, not while it goes on: two kinds of collectives on one group
  /// would come in an order that depends on each replica's graph.
  void meets_in_backward() noexcept;
  bool has_met_in_backward() const noexcept;

  at::Device device() const noexcept;         ///< where this replica computes
  bool shares_device() const noexcept;        ///< with another replica of this worker: a GPU
  const DeviceQueue& queue() const noexcept;  ///< of its work there; inside run() the current one

  /// Where this rank stands on the mesh, and which ranks differ from it on that axis alone (data:
  /// and on shard). Under one_device, and without a mesh, alone on every axis but data; group_of
  /// then gives a group of one.
  const mesh::Mesh& mesh() const noexcept;
  mesh::Place place() const noexcept;
  Group group_of(mesh::Axis axis) const;
  int tensor_blocks() const noexcept;  ///< StrategyOptions::tensor_blocks

  /// For shares by speed, where is_measured(): this replica begins to compute `rows` of a global
  /// batch of `batch`, and has come to the end of backward. DistributedBatch and Optimizer say so.
  bool is_measured() const noexcept;
  void computes(int64_t rows, int64_t batch) const;
  void has_computed() const;

  /// Copies of tensors of the host on this replica's device, for work that is queued from now on:
  /// the host goes on at once, and may change its own (Uploads). On the CPU: themselves. Throws
  /// Timeout where the device does not come to what was copied before.
  std::vector<at::Tensor> on_device(at::TensorList host) const;

 private:
  friend class Strategy;
  struct State;
  friend struct StrategyState;
  std::shared_ptr<State> state_;
};

/// One value per local replica, as run() returns them.
template <class T>
class PerReplica {
 public:
  PerReplica(std::vector<T> values, int first_rank)
      : values_(std::move(values)), first_rank_(first_rank) {}
  using Reference = typename std::vector<T>::const_reference;  ///< const T&, but for bool
  Reference local(int local_rank) const { return values_.at(local_rank); }
  Reference local(const ReplicaContext& replica) const { return local(replica.local_rank()); }
  /// tf.distribute's local results: those of this worker, in rank order, never of other workers.
  const std::vector<T>& values() const noexcept { return values_; }
  int first_rank() const noexcept { return first_rank_; }

 private:
  std::vector<T> values_;
  int first_rank_;
};

}  // namespace tutti
