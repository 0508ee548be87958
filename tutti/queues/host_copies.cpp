#include "tutti/queues/host_copies.h"

#include <algorithm>

namespace tutti {

HostCopies::HostCopies(at::TensorList tensors) {
  const at::NoGradGuard no_grad;
  for (const at::Tensor& tensor : tensors) {
    if (!tensor.defined() || tensor.is_cpu()) {
      tensors_.push_back(tensor);
      continue;
    }
    const OnQueue on(side_of(tensor.device()));
    const at::Tensor copy =
        at::empty(tensor.sizes(), tensor.options().device(at::kCPU).pinned_memory(true));
    tensors_.push_back(copy.copy_(tensor.detach(), /*non_blocking=*/true));
  }
  // With that no memory needs to be kept: what it is used for next comes later.
  for (Side& side : sides_) {
    side.queue.mark(side.there);
    DeviceQueue::current(side.queue.device(), side.queue.owner()).after(side.there, kWaitForCopies);
  }
}

const DeviceQueue& HostCopies::side_of(at::Device device) {
  const auto known =
      std::ranges::find(sides_, device, [](const Side& side) { return side.queue.device(); });
  if (known != sides_.end()) return known->queue;
  const std::string owner = "device " + device.str();
  Side& side = sides_.emplace_back(Side{DeviceQueue::beside(device, owner), {}});
  DeviceMark made;
  DeviceQueue::current(device, owner).mark(made);
  side.queue.after(made, kWaitForTensors);
  return side.queue;
}

void HostCopies::wait(const Deadline& deadline, const std::string& what) const {
  for (const Side& side : sides_) side.queue.wait(side.there, deadline, what);
}

std::vector<at::Tensor> on_host(at::TensorList tensors, const Deadline& deadline,
                                const std::string& what) {
  const HostCopies copies(tensors);
  copies.wait(deadline, what);
  return copies.tensors();
}

at::Tensor on_host(const at::Tensor& tensor, const Deadline& deadline, const std::string& what) {
  return on_host(at::TensorList(tensor), deadline, what).front();
}

}  // namespace tutti
