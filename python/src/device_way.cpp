#include "device_way.h"

#include <fmt/format.h>

#include <algorithm>

namespace tutti::python {

HostQueues DevicesOfGroup::queues_on(at::Device device) {
  const std::lock_guard lock(mutex_);
  const auto known = std::ranges::find(
      queues_, device, [](const HostQueues& queues) { return queues.to_host.device(); });
  if (known != queues_.end()) return *known;
  const std::string owner = fmt::format("{} ({})", rank_, device.str());
  return queues_.emplace_back(HostQueues{{device, owner}, {device, owner}});
}

DeviceWay::DeviceWay(HostQueues queues, Millis limit, std::string what)
    : queues_(std::move(queues)), patience_(patience_with_device(limit)), what_(std::move(what)) {
  DeviceMark called;
  DeviceQueue::current(to_host().device(), to_host().owner()).mark(called);
  to_host().after(called, kWaitForCaller);
}

bool DeviceWay::arrived() const {
  if (copied_.passed()) return true;
  if (!patience_.passed()) return false;
  to_host().wait(copied_, patience_, what_);
  return true;
}

}  // namespace tutti::python
