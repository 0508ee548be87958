/// Optimizer rules as StableHLO: the formulas of optim/options.h on whole tensors.
///
/// Thread rule: pure functions.
#pragma once

#include <vector>

#include "tutti/hlo/ops.h"
#include "tutti/optim/rule.h"

namespace tutti::nn {

/// What changes with the step, for a lowered rule: learning rate, 1 / (1 - beta1^t),
/// sqrt(1 - beta2^t), nadam's 0.96^(t momentum_decay), and 1 in the first update, else 0. Made in
/// double; powers of nadam's beta1 are the product of its momenta.
constexpr int kLoweredScalars = 5;
std::vector<float> lowered_scalars(const optim::StepScalars& scalars);

struct LoweredUpdate {
  hlo::Value parameter;
  std::vector<hlo::Value> states;
};

/// What a parameter and its states become.
///
/// parameter, gradient, states  float32, of one shape
/// scalars                      float32 [kLoweredScalars]
LoweredUpdate lower(const optim::Rule& rule, hlo::Value parameter, hlo::Value gradient,
                    const std::vector<hlo::Value>& states, hlo::Value scalars);

}  // namespace tutti::nn
