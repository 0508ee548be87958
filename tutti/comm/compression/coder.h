/// Coders: one replica's side of a compressed sum of gradients, without the exchange itself.
///
/// A coder reads this replica's gradients in a bucket, says what the replicas must exchange, goes
/// on when that is done, and at last leaves the sum over replicas in the bucket. It waits for
/// nobody: whoever drives it carries the exchanges out, over a Group or for replicas that take
/// turns.
///
/// Thread rule: one coder belongs to one replica and is used by one thread at a time.
#pragma once

#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "tutti/base/array.h"
#include "tutti/base/reduction_shape.h"
#include "tutti/comm/compression/compression.h"
#include "tutti/comm/group/cross_device.h"

namespace tutti::detail {

/// What replicas exchange next, all of them the same kind and lengths.
struct Exchange {
  enum class Kind : uint8_t { none, sum, gather };
  Kind kind = Kind::none;
  ReduceOp op = ReduceOp::sum;  ///< sum: or mean
  MemorySpan data{};            ///< sum: in place over the replicas; gather: this replica's part
  MemorySpan all{};             ///< gather: all parts, in rank order
};

/// A tensor that is coded, in its bucket.
struct CodedTensor {
  int tensor = 0;  ///< its number among the states
  float* values = nullptr;
  int64_t rows = 0;     ///< matrix_of its shape
  int64_t columns = 0;  ///< rows * columns elements
};

/// What one replica keeps from step to step for one tensor, wherever its bucket lies.
struct CodedState {
  Array residual;  ///< gradients not sent yet; empty before the first step
  Array factor;    ///< power_sgd: the last right factor, one row for each of its columns
};

class BucketCoder {
 public:
  virtual ~BucketCoder() = default;

  /// The bucket holds this replica's gradients, zeros where used[i] == 0: such a tensor takes part
  /// with zeros and keeps its residual.
  virtual Exchange begin(std::span<const uint8_t> used) = 0;

  /// Goes on when the last exchange is done. Kind::none: the bucket holds the sums.
  virtual Exchange next() = 0;
};

/// `bucket` holds all `tensors` and zeros between them; states are indexed by CodedTensor::tensor
/// and outlive the coder. `shape` is the order in which gathered parts are added.
std::unique_ptr<BucketCoder> make_coder(const Compression& compression, MemorySpan bucket,
                                        std::vector<CodedTensor> tensors,
                                        std::span<CodedState> states, const ReductionShape& shape);

/// Carries an exchange out over `group`; sums go through `reduction`.
Work start_exchange(const Exchange& exchange, Group& group, CrossDeviceReduction& reduction,
                    Millis limit);

/// The exchange that all of `parts` (one a replica, in rank order) ask for, within one process.
void exchange_in_turn(std::span<const Exchange> parts, CrossDeviceReduction& reduction,
                      const ReductionShape& shape);

/// Bytes that each of `replicas` sends for it, on average, when no byte is sent in vain: of S bytes
/// 2 (n - 1) / n S for a sum, (n - 1) S for a gather.
int64_t wire_bytes(const Exchange& exchange, int replicas);
/// The same for a sum of `bytes`.
int64_t sum_wire_bytes(int64_t bytes, int replicas);

/// Residuals of `gone` are added to those of `stays`: what a leaving replica has not sent is not
/// lost.
void fold_residuals(std::span<CodedState> stays, std::span<CodedState> gone);

/// A tensor as a matrix: the first dimension, and the product of the others.
std::pair<int64_t, int64_t> matrix_of(std::span<const int64_t> shape);

/// power_sgd's rank for a matrix: not above its sides.
int64_t factor_rank(const Compression& compression, int64_t rows, int64_t columns);

}  // namespace tutti::detail
