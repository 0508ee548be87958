/// SlicedGradients: one rank's gradients on their way into the sums of those who own them.
///
/// Each goes into its bucket as soon as it is there, and is given back to autograd's memory; a full
/// bucket goes to its owners while backward goes on. Sums follow the group's reduction shape, and
/// what was not used leaves the others' sum as it is.
/// Thread rule: the replica's own thread.
#pragma once

#include <torch/types.h>

#include <optional>
#include <span>
#include <vector>

#include "tutti/base/array.h"
#include "tutti/comm/group/group.h"
#include "tutti/sync/detail/gradients.h"
#include "tutti/sync/detail/ready_buckets.h"
#include "tutti/sync/sharded/detail/shard_layout.h"

namespace tutti::detail {

class SlicedGradients {
 public:
  /// Where sums lie: in a row of all buckets, of which the owner's parts count in the end; or in
  /// its slice alone, and then buckets have memory only until they are summed.
  enum class Keep : uint8_t { row, slice };

  struct Place {
    int owner = 0;          ///< whose slice this rank's is
    bool scattered = true;  ///< the group's ranks are the owners, in their order
    Keep keep = Keep::row;
    /// In the middle of a backward pass it may wait for other replicas, so that few buckets have
    /// memory. Off where these may wait for this one meanwhile, for something else.
    bool may_wait = true;
  };

  /// `group` is of all whose gradients are added. The layouts must outlive it.
  SlicedGradients(Group group, Place place, const Slots& layout, const ShardLayout& shards,
                  std::vector<at::Tensor> parameters, Millis limit);

  /// Gets ready for a backward pass; `overlap`: gradients are taken while it goes on. Throws
  /// UsageError when an earlier one of this step has failed and others have some of it.
  void begin(bool overlap);
  GradientListener* listener() const noexcept { return hooks_.listener(); }

  /// Takes the rest, as Updater::step(), and lets it go.
  void finish(std::span<const at::Tensor> gradients, const Vote& vote);
  /// Returns when the owner's sums are there. Throws NothingTrained, on all.
  Verdict wait();
  /// By parameter, after wait(): used on any replica.
  std::span<const uint8_t> used() const noexcept {
    return std::span(used_).first(used_.size() - kVoteWords);
  }
  /// The sum of a piece of this owner's part of a bucket, until end_step().
  std::byte* sum_of(const OwnedPiece& piece) const;
  void end_step();

  /// That it holds, with the most that open buckets have had at once.
  int64_t bytes() const noexcept { return sums_.num_bytes() + most_open_bytes_; }

 private:
  void gradient_ready(int parameter);
  void place(int parameter, const at::Tensor* gradient);
  std::byte* memory_of(int bucket);
  void send(int bucket);
  void retire_what_is_done();
  void retire(int bucket);
  int num_sent() const noexcept { return static_cast<int>(works_.size()); }

  Group group_;
  Place place_;
  const Slots& layout_;
  const ShardLayout& shards_;
  std::vector<at::Tensor> parameters_;
  Millis limit_;
  Array sums_;                      // the row, or the slice
  std::vector<at::Tensor> memory_;  // by bucket, while it is open (Keep::slice)
  ReadyBuckets ready_;
  std::vector<uint8_t> used_;  // by parameter, and VoteWords
  std::vector<Work> works_;    // by bucket that is on its way
  int retired_ = 0;            // buckets that are summed
  Work used_work_;
  int64_t open_bytes_ = 0, most_open_bytes_ = 0;
  bool listens_ = false;
  ReadyHooks hooks_;
};

}  // namespace tutti::detail
