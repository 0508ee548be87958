/// LateReads: values on a device that the host wants, read once they have come, so that no step
/// waits for them.
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <vector>

#include "tutti/base/deadline.h"
#include "tutti/queues/queue.h"

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

  /// Reads what has come. Waits only where more than kMostBehind, or copies of more than
  /// kMostBytes, are on their way, so that memory stays bounded: until there are fewer. Throws what
  /// a `read` throws; Timeout.
  void poll(const Deadline& deadline);

  /// Waits for all, and reads them.
  void settle(const Deadline& deadline);

  bool empty() const noexcept { return waiting_.empty(); }

  static constexpr size_t kMostBehind = 256;
  static constexpr int64_t kMostBytes = int64_t{256} << 20;

 private:
  struct Waiting {
    std::vector<at::Tensor> copies;
    int64_t bytes = 0;  ///< of those that are copied
    DeviceMark there;
    Read read;
  };
  bool too_many() const noexcept {
    return waiting_.size() > kMostBehind || (waiting_.size() > 1 && bytes_ > kMostBytes);
  }
  void read_first();

  DeviceQueue queue_;
  std::deque<Waiting> waiting_;
  int64_t bytes_ = 0;              // of all that are waiting
  std::vector<DeviceMark> marks_;  // to be used again: making an event costs a microsecond
};

}  // namespace tutti
