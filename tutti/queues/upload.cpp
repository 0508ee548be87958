#include "tutti/queues/upload.h"

#include <utility>

namespace tutti {
namespace {

bool goes_to(const at::Tensor& tensor, at::Device device) {
  return tensor.defined() && tensor.is_cpu() && !device.is_cpu();
}

// LibTorch's cache of pinned memory gives a block to somebody else only once copies out of it have
// run.
at::Tensor pinned(const at::Tensor& host) {
  at::Tensor copy = at::empty(host.sizes(), host.options().pinned_memory(true));
  return copy.copy_(host.detach());
}

}  // namespace

at::Tensor on_device(const at::Tensor& host, at::Device device) {
  if (!goes_to(host, device)) return host;
  const at::NoGradGuard no_grad;
  return pinned(host).to(device, /*non_blocking=*/true);
}

void copy_queued(const at::Tensor& to, const at::Tensor& from) {
  const at::NoGradGuard no_grad;
  to.detach().copy_(goes_to(from, to.device()) ? pinned(from) : from, /*non_blocking=*/true);
}

Uploads::Uploads(DeviceQueue queue, int64_t most_bytes)
    : queue_(std::move(queue)), most_bytes_(most_bytes) {
  if (queue_.on_device()) copies_ = DeviceQueue(queue_.device(), queue_.owner());
}

std::vector<at::Tensor> Uploads::copy(at::TensorList host, const Deadline& deadline) {
  if (!queue_.on_device()) return host.vec();
  make_room(deadline);
  Ahead& batch = ahead_.emplace_back();
  std::vector<at::Tensor> there;
  {
    const OnQueue on(copies_);
    for (const at::Tensor& tensor : host) there.push_back(on_device(tensor, queue_.device()));
  }
  copies_.mark(copied_);
  queue_.after(copied_, kWait);
  for (size_t i = 0; i < there.size(); ++i) {
    if (!goes_to(host[i], queue_.device())) continue;
    queue_.uses(there[i]);
    batch.bytes += static_cast<int64_t>(there[i].nbytes());
  }
  bytes_ahead_ += batch.bytes;
  return there;
}

// Whoever asks for a batch has queued what uses the one before.
void Uploads::make_room(const Deadline& deadline) {
  if (ahead_.empty()) return;
  if (!marks_.empty()) {
    ahead_.back().used = std::move(marks_.back());
    marks_.pop_back();
  }
  queue_.mark(ahead_.back().used);
  while (ahead_.size() > kFewest && bytes_ahead_ > most_bytes_) {
    queue_.wait(ahead_.front().used, deadline,
                "the steps whose batches fill the memory kept for them");
    drop_first();
  }
  while (!ahead_.empty() && ahead_.front().used.passed()) drop_first();
}

void Uploads::drop_first() {
  bytes_ahead_ -= ahead_.front().bytes;
  marks_.push_back(std::move(ahead_.front().used));
  ahead_.pop_front();
}

}  // namespace tutti
