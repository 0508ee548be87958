/// The optimizer as flags describe it; `train` and `bench step` share them.
/// Thread rule: the main thread alone.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tutti/optim/recipe.h"

namespace tutti::cli {

struct Command;

/// What was typed; unset is empty.
struct OptimizerFlags {
  std::string name = "adam";
  std::optional<double> learning_rate;
  std::optional<double> weight_decay;
  std::string options;  ///< "momentum=0.9,nesterov=true"
  optim::Clip clip;
  std::vector<std::string> groups;  ///< each "*.bias:weight_decay=0"
};

void add_optimizer_flags(Command& command, OptimizerFlags& flags);

/// UsageError names the flag whose value is out of range, or which the optimizer does not have.
optim::Recipe recipe_from(const OptimizerFlags& flags);

}  // namespace tutti::cli
