/// DeviceBuckets: the gradients of a replica that is alone in its process, added up over all
/// processes while backward goes on. Not for users.
///
/// Gradients lie in one flat tensor, by the layout. A bucket is some of them; once all of it are
/// there, the group gets it, whose engine (nccl) adds it up on a stream of its own. Buckets go in
/// one order on all ranks: in the first step that of the parameters, reversed; then the order in
/// which rank 0 has seen them become ready. Li et al. 2020, arXiv:2006.15704.
///
/// Thread rule: one thread at a time, the replica's or, while that one is in backward(),
/// autograd's. Nothing here waits for a device; agree_on_order() alone waits for other ranks.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "tutti/comm/group/group.h"
#include "tutti/queues/queue.h"
#include "tutti/sync/detail/runs.h"
#include "tutti/sync/updater.h"

namespace tutti::detail {

class DeviceBuckets {
 public:
  /// `gradients`: bytes by the layout, on the device that `group` reaches. `limit`: of each sum,
  /// the time in queues included.
  DeviceBuckets(Group group, const Layout& layout, at::Tensor gradients, const DeviceSums& sizes,
                Millis limit);

  /// The gradient of `parameter` is in its place, behind what is queued on the current stream.
  /// Throws UsageError when it was there already.
  void put(int parameter);
  bool has(int parameter) const { return put_[static_cast<size_t>(parameter)] != 0; }

  /// What `queue` does from now on comes behind all sums; the next step begins. All gradients are
  /// there. Throws Timeout, PeerLost.
  void join(const DeviceQueue& queue);

  /// Collective, once, after the first step; nothing later. `hosts`: of the same ranks.
  void agree_on_order(Group hosts);

 private:
  struct Bucket {
    std::vector<Run> runs;
    int parameters = 0;
    int missing = 0;
  };
  void cut(const std::vector<int>& order);
  void submit_full();
  void begin_step();

  Group group_;
  const Layout& layout_;
  at::Tensor gradients_;
  DeviceSums sizes_;
  Millis limit_;
  std::vector<Bucket> buckets_;
  std::vector<int> bucket_of_;  // by parameter; -1: frozen
  std::vector<uint8_t> put_;    // by parameter, in this step
  std::vector<int> seen_;       // the order of the first step
  size_t submitted_ = 0;        // buckets, in this step
  std::vector<Work> works_;     // of this step
  bool agreed_ = false;
};

}  // namespace tutti::detail
