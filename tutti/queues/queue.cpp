#include "tutti/queues/queue.h"

#include <ATen/ops/zeros.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <thread>

#include "tutti/base/detail/queued_wait.h"
#include "tutti/base/error.h"

namespace tutti {
namespace {

// The usual one is 0; LibTorch has a pool of streams for each.
constexpr int kPriorityOfProbes = -1;

c10::impl::VirtualGuardImpl guard_of(at::Device device) {
  return c10::impl::VirtualGuardImpl(device.type());
}

at::Tensor probe_on(at::Device device) {
  return at::zeros({1}, at::TensorOptions().dtype(at::kByte).device(device));
}

/// One of them that is on that device; null: none is.
const DeviceQueue* on(at::Device device, const std::vector<DeviceQueue>& queues) {
  const auto found = std::ranges::find(queues, device, &DeviceQueue::device);
  return found == queues.end() ? nullptr : &*found;
}

/// Of this process.
struct Beside {
  std::mutex mutex;
  std::map<at::DeviceIndex, c10::Stream> streams;
  std::weak_ptr<const std::vector<DeviceQueue>> replicas;  // of the world that was made last
};

Beside& beside_replicas() {
  static Beside one;
  return one;
}

// LibTorch that is older than this call has no use for it either: engine nccl needs a newer one.
template <class Guard>
uintptr_t handle_of(const Guard& guard, const c10::Stream& stream) {
  if constexpr (requires { guard.getStreamNativeHandle(stream); })
    return reinterpret_cast<uintptr_t>(guard.getStreamNativeHandle(stream));
  else
    throw UsageError("this LibTorch does not say which CUDA stream a tensor is used on: 2.11 does");
}

}  // namespace

DeviceQueue::DeviceQueue(at::Device device, std::string owner)
    : device_(device), owner_(std::move(owner)) {
  if (device.is_cpu()) return;
  stream_ = guard_of(device).getNewStream(device);
  probe_ = probe_on(device);
}

// Where a replica is on the device, its probe serves: copies for the host take no memory there.
DeviceQueue DeviceQueue::beside(at::Device device, std::string owner) {
  Beside& process = beside_replicas();
  DeviceQueue queue = current(device, std::move(owner));
  {
    const std::lock_guard lock(process.mutex);
    auto known = process.streams.find(device.index());
    if (known == process.streams.end())
      known = process.streams.emplace(device.index(), guard_of(device).getNewStream(device)).first;
    queue.stream_ = known->second;
    queue.all_ = process.replicas.lock();
  }
  const DeviceQueue* const replica = queue.all_ ? on(device, *queue.all_) : nullptr;
  queue.probe_ = replica != nullptr ? replica->probe_ : probe_on(device);
  return queue;
}

void DeviceQueue::belongs_to(std::shared_ptr<const std::vector<DeviceQueue>> all) {
  Beside& process = beside_replicas();
  const std::lock_guard lock(process.mutex);
  process.replicas = all;
  all_ = std::move(all);
}

DeviceQueue DeviceQueue::current(at::Device device, std::string owner) {
  DeviceQueue queue;
  queue.device_ = device;
  queue.owner_ = std::move(owner);
  if (!device.is_cpu()) queue.stream_ = guard_of(device).getStream(device);
  return queue;
}

Stream DeviceQueue::handle() const {
  if (!on_device()) return {};
  return {handle_of(guard_of(device_), stream())};
}

void DeviceQueue::mark(DeviceMark& mark) const {
  if (!on_device()) return mark.event_.reset();
  if (!mark.event_ || mark.event_->device_index() != device_.index())
    mark.event_.emplace(device_.type());
  mark.event_->record(stream());
}

void DeviceQueue::after(const DeviceMark& mark, const char* wait) const {
  if (!mark.event_ || !on_device()) return;
  const detail::QueuedWait named(wait);
  mark.event_->block(stream());
}

void DeviceQueue::uses(const at::Tensor& tensor) const {
  if (on_device() && tensor.device() == device_) tensor.record_stream(stream());
}

// Polled: cudaEventSynchronize has no limit. What is nearly done is asked for without sleeping.
void DeviceQueue::wait(const DeviceMark& mark, const Deadline& deadline,
                       const std::string& what) const {
  using std::chrono::microseconds;
  constexpr microseconds kShort{20}, kLong{1000};
  constexpr int kQuickAsks = 200;
  for (int asked = 0; !mark.passed(); ++asked) {
    if (deadline.passed()) give_up(deadline, what);
    if (asked < kQuickAsks)
      std::this_thread::yield();
    else
      std::this_thread::sleep_for(asked < 2 * kQuickAsks ? kShort : kLong);
  }
}

// On a queue where there are only probes, from LibTorch's streams of a higher priority: those of
// the usual one may be busy replicas'. A device that works does next to nothing in `limit`.
bool DeviceQueue::answers(Millis limit) const {
  if (!probe_.defined()) return true;
  DeviceQueue aside;
  aside.device_ = device_;
  aside.stream_ = guard_of(device_).getNewStream(device_, kPriorityOfProbes);
  DeviceMark mark;
  {
    const OnQueue on(aside);
    probe_.fill_(1);
    aside.mark(mark);
  }
  const Deadline deadline(limit);
  while (!mark.passed() && !deadline.passed()) std::this_thread::sleep_for(Millis{1});
  return mark.passed();
}

// Who waits for another replica's device hangs with it.
void DeviceQueue::give_up(const Deadline& deadline, const std::string& what) const {
  constexpr const char* kCure =
      "see nvidia-smi and the kernel's log; a device that only has much to do wants a longer "
      "time limit (--time-limit)";
  const Millis for_an_answer = std::clamp(deadline.limit() / 4, Millis{1}, Millis{1000});
  std::string hanging;
  const auto ask = [&](const DeviceQueue& queue) {
    if (!queue.answers(for_an_answer)) hanging += (hanging.empty() ? "" : ", ") + queue.owner();
  };
  if (all_) std::ranges::for_each(*all_, ask);
  if (!all_ || on(device_, *all_) == nullptr) ask(*this);
  const std::string others = hanging.empty() && *others_ ? (*others_)() : "";
  if (hanging.empty())
    throw Timeout(fmt::format("{} has not finished {} within {} ms, but its device answers{}; {}",
                              owner_, what, deadline.limit().count(),
                              others.empty() ? "" : ": " + others, kCure));
  throw Timeout(
      fmt::format("{} hangs: its device does nothing any more; {} waited {} ms for {}; {}", hanging,
                  owner_, deadline.limit().count(), what, kCure));
}

void DeviceQueue::drain(const Deadline& deadline, const std::string& what) const {
  if (!on_device()) return;
  DeviceMark now;
  mark(now);
  wait(now, deadline, what);
}

}  // namespace tutti
