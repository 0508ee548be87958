/// More ways to reduce a bucket of gradients: a function of the user's, and Adasum.
///
///   DistributedOptimizerOptions{.buckets = {.reduction = reduction_by(my_function)}}
///   StrategyOptions{.make_reduction = reduction_by(my_function)}    (not adasum())
///
/// Thread rule: that of CrossDeviceReduction.
#pragma once

#include <functional>
#include <string>

#include "tutti/comm/group/cross_device.h"

namespace tutti {

/// What DDP calls a communication hook: CrossDeviceReduction::reduce() as a function. `bucket`
/// becomes its sum (or mean: `op`) over all members of `group`, the same bits on each, here or when
/// the Work that is returned is done; `bucket` is float32, float64, bfloat16 or float16. Called
/// for the same lengths in the same order on all members, on the thread that moves buckets. What it
/// throws ends the step. Which gradients share a bucket is no promise: the first step cuts them in
/// another way than later ones, a job that goes on from a checkpoint has a first step of its own,
/// and between gradients a bucket may have zeros. A function that treats each element by itself
/// gives the same bits all the same; one that looks at the whole bucket (a norm) does not.
///
///   [](Group& group, MemorySpan bucket, ReduceOp op, Millis limit) {
///     clip(bucket);                                    // of this rank
///     return group.all_reduce(bucket, op, limit);
///   }
using BucketHook = std::function<Work(Group& group, MemorySpan bucket, ReduceOp op, Millis limit)>;

/// Each replica has its own copy of the function. UsageError for an empty one, and in the first
/// step of replicas that take turns on one thread (one_device), which have no group.
CrossDeviceFactory reduction_by(BucketHook hook, std::string name = "hook");

/// Adasum (Maleki et al. 2020, arXiv:2006.02924): gradients that point the same way are averaged,
/// those at right angles are added, so that the learning rate need not grow with the ranks. Of two
/// tensors a and b
///
///   (1 - a.b / (2 a.a)) a + (1 - a.b / (2 b.b)) b
///
/// and so on for pairs of pairs: the whole bucket is one tensor. The same bits on all members;
/// log2(n) times the bucket's bytes go from each, in messages of tag 24932: a program's own
/// messages in the same group take others. float32 and float64; products in double. A number of
/// members that is no power of two, and other dtypes, are a UsageError.
///
/// For DistributedOptimizerOptions::adasum, whose buckets have one parameter each. A Strategy
/// refuses it: its buckets are cut by size and by the order in which gradients come, so that the
/// update, and not only its rounding, would depend on where a job was cut off and on how it runs.
CrossDeviceFactory adasum();

}  // namespace tutti
