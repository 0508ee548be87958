/// What a torch optimizer keeps, as tensors and words: for checkpoints of loops of one's own. Any
/// optimizer that saves and loads itself has it (torch::serialize). Not for users.
/// Thread rule: the thread of the optimizer.
#pragma once

#include <functional>
#include <string>

#include "tutti/sync/updater.h"

namespace tutti::detail {

struct TorchState {
  NamedTensors tensors;  ///< "exp_avg/NAME" of each parameter that has been updated
  /// As JSON: options of each group with the names of its parameters, in their order; of each
  /// parameter numbers, and which tensors are of it.
  std::string words;
};

/// What a parameter of it is called, the same whenever the program runs.
using NameOf = std::function<std::string(const at::Tensor& parameter)>;

/// "torch::optim::Adam"
std::string kind_of(const torch::optim::Optimizer& optimizer);

/// The tensors may be the optimizer's memory. Throws UsageError for what JSON has no words for.
TorchState torch_state_of(torch::optim::Optimizer& optimizer, const NameOf& name_of);

/// Why `state`, which was one of the same kind, is none of this optimizer's: groups, parameters,
/// tensors that are there or not, shapes and dtypes where it has a state now, those of LibTorch
/// shapes of parameters where it has none; "" where it is.
std::string why_no_state_of(torch::optim::Optimizer& optimizer, const TorchState& state,
                            const NameOf& name_of);

/// Takes it; what was kept before goes. Options of groups become those of `state`. What
/// why_no_state_of() finds nothing wrong with is taken; throws c10::Error for values of other types
/// than the optimizer's.
void restore(torch::optim::Optimizer& optimizer, const TorchState& state, const NameOf& name_of);

}  // namespace tutti::detail
