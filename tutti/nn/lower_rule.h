/// Optimizer rules as StableHLO: the formulas of optim/options.h on whole tensors.
///
/// Thread rule: pure functions.
#pragma once

#include <vector>

#include "tutti/hlo/ops.h"
#include "tutti/optim/rule.h"

namespace tutti::nn {

/// What changes with the step, for a lowered rule: learning rate, 1 / (1 - beta1^t),
/// sqrt(1 - beta2^t). Made in double.
constexpr int kLoweredScalars = 3;
std::vector<float> lowered_scalars(const optim::StepScalars& scalars);

struct LoweredUpdate {
  hlo::Value parameter;
  std::vector<hlo::Value> states;
};

/// What a parameter and its states become.
///
/// parameter, gradient, states  float32, of one shape
/// scalars                      float32 [kLoweredScalars]
///
/// UsageError for a rule that is not lowered (ftrl, nadam), and the ones that are.
LoweredUpdate lower(const optim::Rule& rule, hlo::Value parameter, hlo::Value gradient,
                    const std::vector<hlo::Value>& states, hlo::Value scalars);

}  // namespace tutti::nn
