/// DeviceBuckets: the gradients of a replica that is alone in its process, added up over all
/// processes while backward goes on. Not for users.
///
/// Gradients lie in one flat tensor, by the layout. A bucket is some of them; once all of it are
/// there (ready_buckets.h), the group gets it, whose engine (nccl) adds it up on a stream of its
/// own.
///
/// Thread rule: one thread at a time, the replica's or, while that one is in backward(),
/// autograd's. Nothing here waits for a device; end_step() alone waits for other ranks, in the
/// first.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "tutti/comm/group/group.h"
#include "tutti/queues/queue.h"
#include "tutti/sync/detail/ready_buckets.h"
#include "tutti/sync/detail/runs.h"
#include "tutti/sync/updater.h"

namespace tutti::detail {

class DeviceBuckets {
 public:
  /// `gradients`: bytes by the layout, on the device that `group` reaches. `limit`: of each sum,
  /// the time in queues included.
  DeviceBuckets(Group group, const Slots& layout, at::Tensor gradients, const DeviceSums& sizes,
                Millis limit);

  /// The gradient of `parameter` is in its place, behind what is queued on the current stream.
  /// Throws UsageError when it was there already.
  void put(int parameter);
  bool has(int parameter) const { return ready_.has(parameter); }

  /// What `queue` does from now on comes behind all sums. All gradients are there. Throws Timeout,
  /// PeerLost.
  void join(const DeviceQueue& queue);

  /// The next step begins. Collective after the first, when ranks agree on an order. `hosts`: of
  /// the same ranks.
  void end_step(Group hosts);

 private:
  void cut(const std::vector<int>& order);
  void send(int bucket);

  Group group_;
  const Slots& layout_;
  at::Tensor gradients_;
  DeviceSums sizes_;
  Millis limit_;
  ReadyBuckets ready_;
  std::vector<std::vector<Run>> runs_;  // by bucket
  std::vector<Work> works_;             // of this step
};

}  // namespace tutti::detail
