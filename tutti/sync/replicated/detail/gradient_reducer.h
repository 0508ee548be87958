/// GradientReducer: buckets of gradients, all-reduced while backward goes on.
///
/// Gradients are copied into buckets as they become ready; a full bucket is submitted
/// (ready_buckets.h). It goes on in a thread where the engine can be lent (sum_mover.h), whenever
/// the next gradient comes elsewhere.
///
/// Thread rule: one object a replica, used by that replica's thread; backward runs there too. Where
/// there is a thread for buckets that calls the reduction, until finish().
#pragma once

#include <torch/types.h>

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "tutti/comm/group/group.h"
#include "tutti/sync/detail/bucket_sums.h"
#include "tutti/sync/detail/gradients.h"
#include "tutti/sync/detail/ready_buckets.h"
#include "tutti/sync/detail/sum_mover.h"
#include "tutti/sync/slots.h"
#include "tutti/sync/updater.h"

namespace tutti::detail {

class GradientReducer {
 public:
  /// Collective: allocates the buckets. `op`: sum (strategies) or mean (Horovod's shape). `state`:
  /// what an earlier reducer of this replica kept.
  GradientReducer(Group group, const Slots& layout, std::vector<at::Tensor> parameters, ReduceOp op,
                  const ReplicatedOptions& options, Millis limit, BucketState state = {});
  /// Waits, no longer than the limit, for buckets of a step that was not finished.
  ~GradientReducer();
  GradientReducer(const GradientReducer&) = delete;

  /// Whether gradients are taken as they become ready: until told otherwise they are. Not those of
  /// backward passes whose gradients are added up first.
  void listen(bool on) noexcept { listens_ = on; }

  GradientListener* listener() const noexcept { return hooks_.listener(); }

  /// Hands in what the hooks have not seen: gradients[i] undefined means unused here. Starts the
  /// rest.
  void finish(std::span<const at::Tensor> gradients, const Vote& vote);

  /// Waits for all buckets and sets each parameter's grad to its reduced value: a view of a bucket,
  /// good until the next backward, or undefined when no rank used the parameter; not to be used
  /// where the step is left out. Throws NothingTrained, on all.
  Verdict wait();

  /// Of gradients, in the last step, on average over the replicas.
  int64_t wire_bytes() const noexcept { return sums_.wire_bytes(); }
  std::string_view reduction_name() const noexcept { return reduction_->name(); }
  BucketState take_state() { return sums_.take_state(); }
  BucketSums& sums() noexcept { return sums_; }

 private:
  void gradient_ready(int parameter);
  void place(int parameter, const at::Tensor* gradient);
  void send(int bucket);
  void wait_for_buckets();
  void adopt(std::span<const int> order);
  void agree_on_order();
  void view_buckets();
  void reset();

  Group group_;
  Slots layout_;
  std::vector<at::Tensor> parameters_;
  Millis limit_;
  std::unique_ptr<CrossDeviceReduction> reduction_;
  std::shared_ptr<const void> owner_;  // of `memory_`
  MemorySpan memory_;                  // of the buckets
  BucketSums sums_;
  std::vector<at::Tensor> views_;  // by parameter, into the buckets
  ReadyBuckets ready_;
  std::vector<int32_t> used_;  // by parameter, and VoteWords; reduced by max
  std::vector<Work> works_;    // by bucket: its exchange in flight
  Work used_work_;
  bool listens_ = true;
  bool finishes_ = false;            // nobody computes beside it any more, in this step
  std::unique_ptr<SumMover> mover_;  // null: this thread moves buckets
  ReadyHooks hooks_;
};

}  // namespace tutti::detail
