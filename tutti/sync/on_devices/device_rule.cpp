#include "tutti/sync/on_devices/detail/device_rule.h"

#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_foreach_sub.h>
#include <ATen/ops/_fused_adam.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/_fused_sgd.h>

#include "tutti/base/detail/check.h"

namespace tutti::detail {
namespace {

using Flag = std::optional<at::Tensor>;

// The first momentum buffer is zero, so that LibTorch's "first step" is not asked for.
template <class Rate>
void update(const optim::SgdOptions& options, DeviceSlices& slices, const Rate& rate,
            const Flag& flag) {
  const at::TensorList momenta =
      options.momentum > 0 ? at::TensorList(slices.states[0]) : at::TensorList();
  at::_fused_sgd_(slices.values, slices.sums, momenta, options.weight_decay, options.momentum, rate,
                  /*dampening=*/0, options.nesterov, /*maximize=*/false, /*is_first_step=*/false,
                  {}, flag);
}

template <class AdamLike>
at::TensorList largest_of(const AdamLike& options, const DeviceSlices& slices) {
  return options.amsgrad ? at::TensorList(slices.states[2]) : at::TensorList();
}

template <class Rate>
void update(const optim::AdamOptions& options, DeviceSlices& slices, const Rate& rate,
            const Flag& flag) {
  at::_fused_adam_(slices.values, slices.sums, slices.states[0], slices.states[1],
                   largest_of(options, slices), slices.steps, rate, options.beta1, options.beta2,
                   options.weight_decay, options.epsilon, options.amsgrad, /*maximize=*/false, {},
                   flag);
}

template <class Rate>
void update(const optim::AdamWOptions& options, DeviceSlices& slices, const Rate& rate,
            const Flag& flag) {
  at::_fused_adamw_(slices.values, slices.sums, slices.states[0], slices.states[1],
                    largest_of(options, slices), slices.steps, rate, options.beta1, options.beta2,
                    options.weight_decay, options.epsilon, options.amsgrad, /*maximize=*/false, {},
                    flag);
}

template <class Other, class Rate>
void update(const Other&, DeviceSlices&, const Rate&, const Flag&) {
  TUTTI_CHECK(false, "a rule that no device updates");
}

template <class Rate>
void update_by(const optim::Rule& rule, DeviceSlices& slices, const Rate& rate, const Flag& flag) {
  if (slices.values.empty()) return;
  at::_foreach_add_(slices.steps, 1);
  std::visit([&](const auto& options) { update(options, slices, rate, flag); }, rule.options());
  if (flag) at::_foreach_sub_(slices.steps, std::vector(slices.steps.size(), *flag));
}

}  // namespace

bool updates_on_devices(const optim::Rule& rule) {
  const auto& options = rule.options();
  return std::holds_alternative<optim::SgdOptions>(options) ||
         std::holds_alternative<optim::AdamOptions>(options) ||
         std::holds_alternative<optim::AdamWOptions>(options);
}

void update_on_device(const optim::Rule& rule, DeviceSlices& slices, double learning_rate,
                      const std::optional<at::Tensor>& left_out) {
  update_by(rule, slices, learning_rate, left_out);
}

void update_on_device(const optim::Rule& rule, DeviceSlices& slices,
                      const at::Tensor& learning_rate, const std::optional<at::Tensor>& left_out) {
  update_by(rule, slices, learning_rate, left_out);
}

}  // namespace tutti::detail
