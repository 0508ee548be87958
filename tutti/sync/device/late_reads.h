/// LateReads: values on a device that the host wants, read once they have come, so that no step
/// waits for them.
#pragma once

#include <torch/types.h>

#include <deque>
#include <functional>
#include <vector>

#include "tutti/base/deadline.h"
#include "tutti/sync/device/queue.h"

namespace tutti {

/// Thread rule: one thread, that of the queue's replica.
class LateReads {
 public:
  using Read = std::function<void(const std::vector<at::Tensor>&)>;

  explicit LateReads(DeviceQueue queue) : queue_(std::move(queue)) {}

  /// Copies `values` to pinned host memory, behind all that is queued now. `read` gets the copies,
  /// on the CPU, in a later poll() or settle(); in the order of the calls. On a CPU's queue: at
  /// once, the tensors themselves.
  void add(const std::vector<at::Tensor>& values, Read read);

  /// Reads what has come. Waits only where more than kMostBehind are on their way, so that memory
  /// stays bounded: until there are fewer. Throws what a `read` throws; Timeout.
  void poll(const Deadline& deadline);

  /// Waits for all, and reads them.
  void settle(const Deadline& deadline);

  bool empty() const noexcept { return waiting_.empty(); }

  static constexpr size_t kMostBehind = 256;

 private:
  struct Waiting {
    std::vector<at::Tensor> copies;
    DeviceMark there;
    Read read;
  };
  void read_first();

  DeviceQueue queue_;
  std::deque<Waiting> waiting_;
  std::vector<DeviceMark> marks_;  // to be used again: making an event costs a microsecond
};

}  // namespace tutti
