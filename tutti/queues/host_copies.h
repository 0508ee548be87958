/// HostCopies: what the host reads of devices all at once, such as a checkpoint's tensors.
#pragma once

#include <torch/types.h>

#include <string>
#include <vector>

#include "tutti/base/deadline.h"
#include "tutti/queues/queue.h"

namespace tutti {

/// Copies in pinned memory, made on queues beside the replicas' while the host goes on.
///
/// Behind all that is queued on the current queues of this thread when they are asked for; what is
/// queued there afterwards waits for them on the device, so that it may change what they are of.
/// Thread rule: made by the thread whose queues are current; then any thread, one at a time.
class HostCopies {
 public:
  /// Of tensors on the CPU: themselves.
  explicit HostCopies(at::TensorList tensors);

  /// Returns when they are there. Throws Timeout naming the device and `what`.
  void wait(const Deadline& deadline, const std::string& what) const;

  /// In the order of what they are of; nothing is to be read before wait() has returned.
  const std::vector<at::Tensor>& tensors() const noexcept { return tensors_; }

  /// They wait for what makes the tensors; and whoever uses these for them.
  static constexpr const char* kWaitForTensors = "copies for the host, for what is copied";
  static constexpr const char* kWaitForCopies = "what comes after copies for the host, for these";

 private:
  /// Of one device.
  struct Side {
    DeviceQueue queue;
    DeviceMark there;
  };
  const DeviceQueue& side_of(at::Device device);

  std::vector<at::Tensor> tensors_;
  std::vector<Side> sides_;
};

/// The same, waited for.
std::vector<at::Tensor> on_host(at::TensorList tensors, const Deadline& deadline,
                                const std::string& what);
at::Tensor on_host(const at::Tensor& tensor, const Deadline& deadline, const std::string& what);

}  // namespace tutti
