#include "tutti/queues/late_reads.h"

#include <c10/core/DeviceGuard.h>

namespace tutti {
namespace {

constexpr const char* kWhat = "the step whose losses and metrics are read";

}  // namespace

// LibTorch's cache of pinned memory gives a block to somebody else only once copies into it have
// run.
void LateReads::add(const std::vector<at::Tensor>& values, Read read) {
  if (!queue_.on_device()) return read(values);
  const at::NoGradGuard no_grad;
  const OnQueue on(queue_);
  Waiting& waiting = waiting_.emplace_back();
  for (const at::Tensor& value : values) {
    if (!value.defined() || value.is_cpu()) {
      waiting.copies.push_back(value);
      continue;
    }
    at::Tensor copy =
        at::empty(value.sizes(), value.options().device(at::kCPU).pinned_memory(true));
    copy.copy_(value.detach(), /*non_blocking=*/true);
    waiting.bytes += static_cast<int64_t>(copy.nbytes());
    waiting.copies.push_back(std::move(copy));
  }
  bytes_ += waiting.bytes;
  if (!marks_.empty()) {
    waiting.there = std::move(marks_.back());
    marks_.pop_back();
  }
  queue_.mark(waiting.there);
  waiting.read = std::move(read);
}

void LateReads::read_first() {
  Waiting first = std::move(waiting_.front());
  waiting_.pop_front();
  bytes_ -= first.bytes;
  marks_.push_back(std::move(first.there));
  first.read(first.copies);
}

void LateReads::poll(const Deadline& deadline) {
  while (!waiting_.empty() && (too_many() || waiting_.front().there.passed())) {
    queue_.wait(waiting_.front().there, deadline, kWhat);
    read_first();
  }
}

void LateReads::settle(const Deadline& deadline) {
  while (!waiting_.empty()) {
    queue_.wait(waiting_.front().there, deadline, kWhat);
    read_first();
  }
}

}  // namespace tutti
