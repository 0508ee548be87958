/// Stepper: what makes the step on one replica once its gradients are the sums. Not for users.
/// Thread rule: one thread at a time per object.
#pragma once

#include <torch/types.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tutti/optim/recipe.h"
#include "tutti/sync/updater.h"

namespace tutti::detail {

class Stepper {
 public:
  virtual ~Stepper() = default;
  virtual void step(double learning_rate) = 0;
  virtual double learning_rate() const = 0;
  virtual std::string kind() const = 0;
  virtual NamedTensors state() const = 0;
  /// Parameters have their new values. Throws UsageError when the state does not fit.
  virtual void restore(const UpdaterState& state, const NamedTensors& parameters) = 0;
};

/// Of one replica's parameters, in the order of Updater::step().
using StepperFactory = std::function<std::unique_ptr<Stepper>(std::vector<at::Tensor>)>;

/// With any torch optimizer; groups with learning rates of their own keep them until somebody sets
/// a new one.
StepperFactory torch_steppers(TorchOptimizerFactory factory);

/// With what the factory makes: a rule of whole parameters (whole_rule_of()), or a torch optimizer.
StepperFactory steppers_of(TorchOptimizerFactory factory, const Slots& layout);

/// With one of our rules, as the fused step does it.
StepperFactory rule_steppers(const optim::Recipe& recipe, const Slots& layout);

}  // namespace tutti::detail
