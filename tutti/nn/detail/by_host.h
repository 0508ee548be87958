/// What replicas exchange by the host although it is on devices: there and back in autograd's way,
/// with a deadline for each wait, in backward too. Not for users.
#pragma once

#include <torch/types.h>

#include <string>

#include "tutti/base/deadline.h"

namespace tutti::nn::detail {

/// `x`, which is on a device, on the host; its gradient is sent to x's device. Waits half of
/// `limit` (patience_with_device) at most: Timeout that names the device and `what`.
at::Tensor from_device(const at::Tensor& x, Millis limit, const std::string& what);

/// `x`, which is on the host, on `device`, queued; on the CPU itself. Its gradient is waited for as
/// above, by who computes it: autograd's thread of the device.
at::Tensor to_device(const at::Tensor& x, at::Device device, Millis limit, const std::string& what);

}  // namespace tutti::nn::detail
