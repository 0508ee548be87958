/// Horovod's shape, for a LibTorch loop that exists already: wrap its optimizer, broadcast once.
///
///   tutti::Group world = tutti::join();
///   tutti::broadcast_parameters(*model, world);
///   tutti::DistributedOptimizer distributed(*model, optimizer, world);
///   ... loss.backward(); distributed.step();
///
/// Here gradients are AVERAGED over ranks, as in Horovod and DDP, since an existing loop divides
/// its loss by its own batch. (Strategies sum, and divide the loss by the global batch.)
#pragma once

#include <memory>

#include "tutti/comm/group/group.h"
#include "tutti/sync/updater.h"

namespace torch::nn {
class Module;
}

namespace tutti {

struct DistributedOptimizerOptions {
  ReduceOp op = ReduceOp::mean;  ///< mean or sum
  ReplicatedOptions buckets{};
  Millis time_limit{kDefaultTimeLimit};
};

/// Thread rule: used from the one thread of its rank. module and optimizer must outlive it.
/// Gradients are all-reduced while backward goes on; a parameter that no rank used is left without
/// gradient, one that some ranks did not use counts as zero there. UsageError, with the parameter's
/// name, for sparse gradients, double backward, a second backward() before step(), and, on all
/// ranks, for a step in which no parameter has a gradient on any.
class DistributedOptimizer {
 public:
  /// Collective. `optimizer` trains parameters of `module`. Processes that may use the same cores
  /// get as many threads of LibTorch each as there are cores for it, unless OMP_NUM_THREADS or
  /// MKL_NUM_THREADS is set or there are fewer.
  DistributedOptimizer(const torch::nn::Module& module, torch::optim::Optimizer& optimizer,
                       Group group, const DistributedOptimizerOptions& options = {});
  ~DistributedOptimizer();
  DistributedOptimizer(DistributedOptimizer&&) noexcept;

  /// Finishes the all-reduce and lets the optimizer step. Every rank calls it once a step, also one
  /// that had no data. Throws PeerLost, Timeout, Mismatch.
  void step();
  void zero_grad();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Copies rank `root`'s parameters and buffers to all ranks. Mismatch naming the first parameter
/// when the models differ.
void broadcast_parameters(const torch::nn::Module& module, Group group, int root = 0);

}  // namespace tutti
