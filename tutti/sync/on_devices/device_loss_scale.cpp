#include "tutti/sync/on_devices/detail/device_loss_scale.h"

#include <ATen/ops/_amp_update_scale.h>

namespace tutti::detail {
namespace {

// A scale that halves in every step is of no use after 32 of them (LossScale::require_useful).
constexpr int64_t kStepsBetweenLooks = 32;

}  // namespace

DeviceLossScale::DeviceLossScale(const optim::LossScale& from, const DeviceQueue& queue,
                                 at::Tensor overflowed)
    : from_(from), queue_(queue), overflowed_(std::move(overflowed)), late_(queue) {
  const OnQueue on(queue);
  const auto there = at::TensorOptions().device(queue.device());
  value_ = at::full({}, from.value(), there.dtype(at::kFloat));
  good_steps_ = at::full({}, from.good_steps(), there.dtype(at::kInt));
  skipped_ = at::full({}, from.skipped(), there.dtype(at::kLong));
}

void DeviceLossScale::look(const Deadline& deadline) {
  if (!late_.empty()) late_.poll(deadline);
  if (++steps_ % kStepsBetweenLooks != 0) return;
  late_.add({value_}, [this](const std::vector<at::Tensor>& values) {
    optim::LossScale::require_useful(values[0].item<float>(), from_.options());
  });
}

// LibTorch's operator is the formula of LossScale::update().
void DeviceLossScale::update(const at::Tensor& overflowed, const at::Tensor& left_out) {
  const optim::LossScaling& options = from_.options();
  at::Tensor value = value_.clone(), good_steps = good_steps_.clone();
  at::_amp_update_scale_(value, good_steps, overflowed, options.growth, options.backoff,
                         options.growth_interval);
  const at::Tensor counts = left_out == 0;
  at::where_out(value_, counts, value, value_);
  at::where_out(good_steps_, counts, good_steps, good_steps_);
  skipped_.add_(counts.logical_and(overflowed != 0));
}

optim::LossScale DeviceLossScale::read(const Deadline& deadline) const {
  optim::LossScale now = from_;
  LateReads reads(queue_);
  reads.add({value_, good_steps_, skipped_}, [&](const std::vector<at::Tensor>& values) {
    now.restore(values[0].item<float>(), values[1].item<int>(), values[2].item<int64_t>());
  });
  reads.settle(deadline);
  return now;
}

}  // namespace tutti::detail
