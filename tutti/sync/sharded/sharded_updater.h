/// The updater of ZeRO (Rajbhandari et al. 2020, arXiv:1910.02054): of the trained parameters each
/// rank owns a slice, and it alone has optimizer state, and sums of gradients, for it.
///
/// For replicas that do not share a host's memory: the fused step (make_shared_updater) has
/// parameters and state once a host by itself. docs/design/shards.md.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "tutti/sync/shard.h"
#include "tutti/sync/updater.h"

namespace tutti {

struct ShardedOptions {
  Shard shard = Shard::state;
  int64_t bucket_bytes = 4 << 20;  ///< gradients of this size are reduced at once, each cut
};

/// Bytes that an updater holds for one rank.
struct ShardBytes {
  int64_t parameters = 0;  ///< with the most units that a step has had at once
  int64_t gradients = 0;   ///< sums, and the most at once in buckets on their way to their owners
  int64_t state = 0;
  int64_t all() const noexcept { return parameters + gradients + state; }
};

/// An Updater that can say what it holds.
class ShardedUpdater : public Updater {
 public:
  virtual ShardBytes bytes(int replica) const = 0;
};

/// Slices are of all ranks of `world`; where its mesh has an axis shard, of the ranks on that axis,
/// and ranks that differ in data alone have the same. Parameters are float32 and float64 on the
/// CPU, rank 0's values win, and a step has the bits of make_shared_updater. state() is collective
/// over workers, and gives the whole. Throws UsageError where the replicas are not of one group,
/// as several that take turns are not.
std::shared_ptr<ShardedUpdater> make_sharded_updater(const World& world,
                                                     const optim::Recipe& recipe,
                                                     std::vector<NamedTensors> replicas,
                                                     const ShardedOptions& options = {});

}  // namespace tutti
