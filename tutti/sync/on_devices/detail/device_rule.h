/// One of our rules on lists of tensors of a device, by LibTorch's fused optimizers. Not for users.
#pragma once

#include <torch/types.h>

#include <array>
#include <optional>
#include <vector>

#include "tutti/optim/rule.h"

namespace tutti::detail {

/// Slices of parameters that one rule updates together: of each its values, the sum of its
/// gradients, its states in the rule's order, and on the device how many updates it has had.
struct DeviceSlices {
  std::vector<at::Tensor> values, sums, steps;  ///< steps: float32 scalars
  std::array<std::vector<at::Tensor>, optim::kMostStates> states;
};

/// sgd, adam and adamw: those that LibTorch updates in one kernel.
bool updates_on_devices(const optim::Rule& rule);

/// Queues one update, and counts it. `left_out`: a float32 scalar on the device; not 0: nothing
/// changes.
/// The formulas are those of options.h; between a GPU and the CPU results differ by rounding.
void update_on_device(const optim::Rule& rule, DeviceSlices& slices, double learning_rate,
                      const std::optional<at::Tensor>& left_out);
/// The same by a rate that is a float32 scalar on the device: of a step that is captured.
void update_on_device(const optim::Rule& rule, DeviceSlices& slices,
                      const at::Tensor& learning_rate, const std::optional<at::Tensor>& left_out);

}  // namespace tutti::detail
