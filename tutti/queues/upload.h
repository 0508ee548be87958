/// Uploads: batches of host memory, copied to a replica's device while it computes on those before.
///
/// The host waits for no copy: it puts the batch into pinned memory and queues the rest. As it runs
/// ahead of its device, the copies do too.
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <deque>
#include <vector>

#include "tutti/base/deadline.h"
#include "tutti/queues/queue.h"

namespace tutti {

/// A copy of a tensor of the host on `device`, queued on the queue that is current there: the host
/// may change `host` at once. On the CPU, and where it is there already: itself.
at::Tensor on_device(const at::Tensor& host, at::Device device);

/// `to` gets the values of `from`, a tensor of the host or of to's device, which converts them
/// where dtypes differ; queued, as on_device(). Without autograd.
void copy_queued(const at::Tensor& to, const at::Tensor& from);

/// Of one replica. Thread rule: one thread at a time, that of the replica's queue.
class Uploads {
 public:
  /// `queue` is where the copies are used.
  explicit Uploads(DeviceQueue queue, int64_t most_bytes = kMostBytes);

  /// Copies of tensors of the host, in their order, made on a queue of its own; what is queued from
  /// now on on the replica's queue finds them. Undefined ones stay so; on the CPU: themselves. The
  /// host waits only where it is too far ahead for their memory: where more than `most_bytes` of
  /// earlier batches, and more than kFewest of them, wait to be used. Throws Timeout.
  std::vector<at::Tensor> copy(at::TensorList host, const Deadline& deadline);

  static constexpr int64_t kMostBytes = int64_t{256} << 20;
  static constexpr size_t kFewest = 2;
  /// The replica's queue waits for the copies.
  static constexpr const char* kWait = "a batch, for its copy to the device";

 private:
  /// A batch that the device has yet to use.
  struct Ahead {
    int64_t bytes = 0;
    DeviceMark used;
  };
  void make_room(const Deadline& deadline);
  void drop_first();

  DeviceQueue queue_;
  int64_t most_bytes_;
  DeviceQueue copies_;
  DeviceMark copied_;
  std::deque<Ahead> ahead_;
  int64_t bytes_ahead_ = 0;
  std::vector<DeviceMark> marks_;  // to be used again: making an event costs a microsecond
};

}  // namespace tutti
