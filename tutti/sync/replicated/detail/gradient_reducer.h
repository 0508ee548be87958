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
  /// Whether a backward pass of this step has come, of those that are listened to; taken: whether
  /// some gradient is in its bucket, which may be on its way.
  bool has_begun() const;
  bool has_taken() const { return ready_.has_any(); }
  /// Whether a pass of this step has come while nobody listened.
  bool has_unsent() const noexcept { return unsent_; }
  /// Passes of this step do not count: nothing was taken of them.
  void forget_passes();

  /// A gradient is taken once so many passes have added to it; between steps.
  void expect_passes(int passes) noexcept { expected_passes_ = passes; }
  /// Gradients that are taken from now on are sent so many times as large; 0: as zeros.
  void set_scale(double scale) noexcept { scale_ = scale; }
  /// From now on every rank says so many words of its own in finish(), all ranks the same number.
  void hear(int64_t words);
  /// A step in which no rank has a gradient is none of NothingTrained.
  void let_nothing_train() noexcept { needs_gradient_ = false; }

  GradientListener* listener() const noexcept { return hooks_.listener(); }

  /// Hands in what the hooks have not seen: gradients[i] undefined means unused here. Starts the
  /// rest. `words`: what this rank says of itself, as many as hear() was told.
  void finish(std::span<const at::Tensor> gradients, const Vote& vote,
              std::span<const int32_t> words = {});

  /// Waits for all buckets and sets each parameter's grad to its reduced value: a view of a bucket,
  /// good until the next backward, or undefined when no rank used the parameter; not to be used
  /// where the step is left out. Throws NothingTrained, on all.
  Verdict wait();

  /// Of the last step: what all ranks said, by rank.
  std::span<const int32_t> heard() const noexcept { return heard_; }
  /// Whether some rank had a gradient, in the last step.
  bool any_gradient() const noexcept { return any_gradient_; }

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
  std::vector<int32_t> used_;  // by parameter, VoteWords, words by rank; reduced by max
  std::vector<int32_t> heard_;
  std::vector<int> passes_;  // by parameter, in this step
  int64_t words_ = 0;        // of each rank
  int expected_passes_ = 1;
  double scale_ = 1;
  bool needs_gradient_ = true, any_gradient_ = false;
  std::vector<Work> works_;  // by bucket: its exchange in flight
  Work used_work_;
  bool listens_ = true, unsent_ = false;
  bool finishes_ = false;            // nobody computes beside it any more, in this step
  std::unique_ptr<SumMover> mover_;  // null: this thread moves buckets
  ReadyHooks hooks_;
};

/// Collective, after backward: the rows that any rank has in the sparse gradient of `parameter`,
/// each the sum of the ranks' in rank order, `scale` times this rank's own; undefined where no rank
/// has a gradient (undefined: this one has none). UsageError on all, naming parameter and rank, for
/// a gradient that is dense, or of more than one sparse dimension.
at::Tensor rows_of_all(Group& group, const std::string& name, const at::Tensor& parameter,
                       const at::Tensor& gradient, double scale, Millis limit);

}  // namespace tutti::detail
