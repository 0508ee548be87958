/// OnGroup: the differentiable collectives and SyncBatchNorm in a loop of one's own, without a
/// Strategy.
///
///   tutti::Group world = tutti::join();
///   tutti::OnGroup ranks(world);                       // until the end of the loop
///   ... auto all = nn::all_gather(ranks.replica(), features);
///   ... model->forward(x)                              // with nn::SyncBatchNorm in it
///
/// The function that is differentiated is the sum of the ranks' losses (tutti/nn/collectives.h);
/// a DistributedOptimizer's mean of the ranks' gradients makes that the mean of their losses, as
/// with DDP.
#pragma once

#include "tutti/strategy/replica_context.h"

namespace tutti {

namespace detail {
class CurrentReplica;
}

/// While it lives its thread is a replica of the group, one for each rank:
/// ReplicaContext::current() is replica(). Random numbers stay LibTorch's own. What is for outside
/// of Strategy::run (methods of Strategy, epochs of its data) throws on this thread meanwhile.
/// Thread rule: made, used and destroyed on one thread; the last one made goes first.
class OnGroup {
 public:
  /// Collective: its exchanges go through a group of their own, so that they may come between those
  /// of `group`, as a DistributedOptimizer's. The time limit is that of `group`. UsageError on a
  /// thread that is a replica already, on that rank alone: the others wait until their limit.
  explicit OnGroup(Group group);
  ~OnGroup();
  OnGroup(const OnGroup&) = delete;
  OnGroup& operator=(const OnGroup&) = delete;

  ReplicaContext& replica() noexcept { return replica_; }

 private:
  ReplicaContext replica_;
  std::unique_ptr<detail::CurrentReplica> current_;
};

}  // namespace tutti
