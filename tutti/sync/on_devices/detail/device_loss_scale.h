/// DeviceLossScale: an optim::LossScale on a replica's device, which learns there which steps are
/// left out, so that no host waits for the answer. Not for users.
#pragma once

#include <torch/types.h>

#include "tutti/optim/loss_scale.h"
#include "tutti/queues/late_reads.h"

namespace tutti::detail {

/// All replicas have one; as all are told the same of every step, all have the same bits, which are
/// those of LossScale. Thread rule: its replica's thread; read() between runs.
class DeviceLossScale {
 public:
  /// overflowed  float32, one element on the queue's device: what this replica finds in a step
  DeviceLossScale(const optim::LossScale& from, const DeviceQueue& queue, at::Tensor overflowed);
  DeviceLossScale(const DeviceLossScale&) = delete;
  DeviceLossScale& operator=(const DeviceLossScale&) = delete;

  /// The gradient that backward() begins with.
  at::Tensor seed_of(const at::Tensor& loss) const {
    return value_.to(loss.dtype()).expand_as(loss);
  }

  /// Before gradients of a step are divided by the scale: nothing has overflowed yet.
  void begin_step() { overflowed_.zero_(); }
  /// Once a step, where nothing is captured: now and then the host looks at the scale, and sees it
  /// later. Throws what LossScale::update() throws, some steps late.
  void look(const Deadline& deadline);
  at::Tensor reciprocal() const { return value_.reciprocal(); }
  at::Tensor& overflowed() noexcept { return overflowed_; }  ///< not 0: of no use

  /// After a step. Both are float32 scalars on the device.
  /// overflowed  not 0: a gradient of any replica was not finite
  /// left_out    not 0: the step was left out for another reason, and changes nothing here
  void update(const at::Tensor& overflowed, const at::Tensor& left_out);

  /// Waits for what is queued. Throws Timeout.
  optim::LossScale read(const Deadline& deadline) const;

 private:
  optim::LossScale from_;
  DeviceQueue queue_;
  at::Tensor overflowed_;
  at::Tensor value_, good_steps_, skipped_;  // float32, int32, int64
  LateReads late_;
  int64_t steps_ = 0;
};

}  // namespace tutti::detail
