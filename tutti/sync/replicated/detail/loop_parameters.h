/// Which parameters a DistributedOptimizer trains, and whether all ranks say the same. Not for
/// users. Thread rule: that of the module and the Group's operations.
#pragma once

#include <exception>
#include <string>

#include "tutti/sync/replicated/distributed_optimizer.h"

namespace tutti::detail {

/// The module's parameters in its order, which all ranks share: what the optimizer trains by dense
/// gradients, by sparse ones, and not at all.
struct LoopParameters {
  NamedTensors dense, sparse, others;
};

/// UsageError where the optimizer trains what is no parameter of the module, or nothing.
LoopParameters parameters_of(const torch::nn::Module& module,
                             const torch::optim::Optimizer& optimizer);

/// UsageError for options that are out of range or contradict each other.
void check_loop(const DistributedOptimizerOptions& options);

/// Lines for the options that all ranks must have alike and the kind of optimizer, then one for
/// each parameter of it.
std::string described(const LoopParameters& all, const DistributedOptimizerOptions& options,
                      const torch::optim::Optimizer& optimizer);

/// The learning rate of each group, a line each; "" for an optimizer that has none.
std::string learning_rates_of(const torch::optim::Optimizer& optimizer);

/// Collective: Mismatch on every rank, of the first difference of a rank from the first one that
/// says anything. Where `failure` is not null it is thrown on its rank, and FailedElsewhere, which
/// names that one, on the others.
void require_alike(Group& group, const std::string& own, Millis limit,
                   const std::exception_ptr& failure = nullptr);

}  // namespace tutti::detail
