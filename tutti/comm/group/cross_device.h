/// CrossDeviceReduction: how gradients of several replicas become their sum on each of them.
///
///   StrategyOptions{.reduction = "hierarchical_copy"}              one of the built-in ones
///   StrategyOptions{.make_reduction = [] { return std::make_unique<MyReduction>(); }}
///
/// built in             how                                                   bytes of the busiest
/// all_reduce           the engine's own                                      2 (n - 1) / n S
/// to_one_device        all send to replica 0, which adds and sends back      2 (n - 1) S
/// hierarchical_copy    pairs, pairs of pairs, ...; the sum back the same way 2 log2(n) S
///
/// All three add in the reduction shape and give the same bits. One that a user writes may add in
/// its own order: then runs of another strategy or another number of replicas differ in rounding.
///
/// Thread rule: one object a replica, used by one thread at a time: that replica's, or the one that
/// moves its buckets while backward goes on.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "tutti/comm/group/group.h"

namespace tutti {

class CrossDeviceReduction {
 public:
  virtual ~CrossDeviceReduction() = default;

  virtual std::string_view name() const noexcept = 0;

  /// Collective: `data` becomes its sum (or mean: `op`) over all members of `group`, the same bits
  /// on each. Called for the same lengths and dtypes (float32, float64, bfloat16, float16) in the
  /// same order on all members, in the midst of backward: it may return with the operation in
  /// flight, and `data` stays as it is until the Work is done. Throws what Group throws.
  virtual Work reduce(Group& group, MemorySpan data, ReduceOp op, Millis limit) = 0;

  /// The same for replicas that take turns on one thread (one_device): parts[r] is that of replica
  /// r. Adds in the order of `shape` unless overridden. Called on the object of replica 0.
  virtual void reduce_in_turn(std::span<const MemorySpan> parts, ReduceOp op,
                              const ReductionShape& shape);
};

/// Makes the object of one replica; called once for each local one.
using CrossDeviceFactory = std::function<std::unique_ptr<CrossDeviceReduction>()>;

/// "all_reduce", "to_one_device", "hierarchical_copy".
const std::vector<std::string>& cross_device_names();

/// The factory of a built-in one; UsageError that names the nearest known.
CrossDeviceFactory cross_device_by_name(std::string_view name);

}  // namespace tutti
