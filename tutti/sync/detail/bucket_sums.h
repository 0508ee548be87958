/// BucketSums: one replica's gradients in buckets, and how each bucket becomes the sum over
/// replicas, compressed or not.
///
/// Without LibTorch and without waiting: begin() and next() say what replicas exchange
/// (comm/compression/coder.h). GradientReducer carries that out over a Group while backward goes
/// on, sum_in_turn() for replicas that take turns.
///
/// Thread rule: one object a replica, used by one thread at a time.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "tutti/comm/compression/coder.h"
#include "tutti/sync/replicated_options.h"
#include "tutti/sync/slots.h"

namespace tutti::detail {

/// One replica's object of the reduction that was chosen. UsageError when the user's factory makes
/// none.
std::unique_ptr<CrossDeviceReduction> make_reduction(const ReplicatedOptions& options);

/// Collective: Mismatch naming both when any rank was given another compression than rank 0.
void compare_compression(Group group, const Compression& compression, Millis limit);

/// Parameters whose gradients travel together: consecutive in the order, of one dtype, all
/// compressed or none.
struct Bucket {
  std::vector<int> parameters;
  int64_t begin_bytes = 0;  ///< in the memory of the buckets
  int64_t num_elements = 0;
  DType dtype = DType::float32;
  bool coded = false;
};

/// All parameters, the last one first: in which order backward gives gradients, as far as that is
/// known before it.
std::vector<int> reverse_order(const Slots& layout);

/// Cuts trained parameters, in `order`, into buckets: those that are compressed first, so that the
/// small rest shares a bucket; a new one at each change of dtype and when the limit is reached.
/// Every gradient starts on a 64-byte line: `offsets` (by parameter, bytes) says where.
std::vector<Bucket> plan_buckets(const Slots& layout, std::span<const int> order,
                                 const ReplicatedOptions& options, std::vector<int64_t>& offsets);

/// What a replica keeps from step to step, wherever its buckets lie.
struct BucketState {
  std::vector<CodedState> tensors;  ///< by parameter
  int64_t step = 0;                 ///< steps summed so far
};

class BucketSums {
 public:
  /// `memory`: layout.total_bytes on a 64-byte line, outlives this. The first order is that of the
  /// parameters, reversed.
  BucketSums(const Slots& layout, const ReplicatedOptions& options, const ReductionShape& shape,
             ReduceOp op, std::byte* memory, BucketState state = {});

  /// Takes another order of the parameters; the memory is zeros afterwards.
  void adopt(std::span<const int> order);

  const std::vector<Bucket>& buckets() const noexcept { return buckets_; }
  int bucket_of(int parameter) const noexcept { return bucket_of_[parameter]; }  ///< -1: frozen
  std::byte* gradient_of(int parameter) const noexcept { return memory_ + offsets_[parameter]; }

  /// All gradients of bucket `number` are in it: zeros where used[parameter] == 0.
  Exchange begin(int number, std::span<const int32_t> used);
  /// Goes on when the bucket's last exchange is done. Kind::none: the bucket holds its sum or mean.
  Exchange next(int number);
  /// All buckets hold their sums.
  void end_step();
  /// Instead: nobody takes the sums, and what is kept from step to step is as it was.
  void leave_out_step();

  /// Of gradients, on average over replicas, in the last step.
  int64_t wire_bytes() const noexcept { return last_wire_bytes_; }
  const BucketState& state() const noexcept { return state_; }
  BucketState take_state() { return std::move(state_); }
  /// Goes on from the state of another, between steps.
  void restore(BucketState state);

 private:
  MemorySpan span_of_bucket(const Bucket& bucket) const;
  std::unique_ptr<BucketCoder> coder_of(const Bucket& bucket);
  bool codes_now(int number) const;
  Exchange counted(Exchange exchange);

  Slots layout_;
  ReplicatedOptions options_;
  ReductionShape shape_;
  ReduceOp op_;
  std::byte* memory_;
  BucketState state_;
  std::vector<CodedState> before_;  // of this step, those of buckets that have begun
  std::vector<Bucket> buckets_;
  std::vector<int64_t> offsets_;                      // of each parameter's gradient, in bytes
  std::vector<int> bucket_of_;                        // by parameter
  std::vector<std::unique_ptr<BucketCoder>> coders_;  // by bucket; null where it is not compressed
  std::vector<uint8_t> used_;                         // of the bucket that begins
  int64_t wire_bytes_ = 0, last_wire_bytes_ = 0;
};

/// One step of replicas that take turns, in rank order: all buckets hold the sums afterwards.
void sum_in_turn(std::span<BucketSums* const> replicas, std::span<const std::vector<int32_t>> used,
                 CrossDeviceReduction& reduction, const ReductionShape& shape);

}  // namespace tutti::detail
