/// Collectives that autograd sees through: all_reduce, all_gather, reduce_scatter, broadcast and
/// all_to_all of tensors, called by every replica inside Strategy::run, or by every rank where an
/// OnGroup lives (tutti/strategy/on_group.h).
///
///   auto all = nn::all_gather(replica, features);        // [global batch, ...] on each replica
///   auto loss = contrast(features, all) / batch.global_size();
///   optimizer.minimize(replica, loss);
///
/// **Which function is differentiated.** Together the replicas compute L = L_0 + ... + L_(n-1), the
/// sum of the losses that they call backward() on. After it, `grad` of a tensor that replica r
/// holds is dL/d(that tensor): what comes to it through the outputs of *all* replicas. This is the
/// function that Optimizer makes smaller, with losses scaled by the global batch. With g_r for the
/// gradient dL_r/dy_r that arrives on replica r:
///
///   y = all_reduce(x), sum    dx_s = g_0 + ... + g_(n-1), the same all-reduce, on every s
///   y = all_reduce(x), mean   the same / n
///   y = all_gather(x)         dx_s = part s of g_0 + ... + g_(n-1): a reduce_scatter
///   y = reduce_scatter(x)     dx_s = g_0, ..., g_(n-1) one behind the other (/ n for mean)
///   y = broadcast(x, root)    dx_root = g_0 + ... + g_(n-1); zero elsewhere
///   y = all_to_all(x)         dx_s = what its parts got, from each replica: the way back
///
/// Backward is made of these functions, so second derivatives work as well.
///
/// **What all replicas must do alike.** They call the same operations in the same order, and
/// backward() once for each output, or for none: a loss that does not depend on an output must say
/// so, + 0 * y.sum(), else the others wait for it until the time limit and name it. They are told
/// of a disagreement (operation, dtype, shape, gradients enabled) by a Mismatch that names a
/// replica, on every replica. An input that needs no gradient on some replicas, such as those of a
/// broadcast that are not the root, is no disagreement. Costs one exchange of 200 bytes a call.
///
/// Sums follow the reduction shape: the same bits on every replica, in every run, as threads and as
/// processes. Any dense dtype; gradients for floating ones. No operation changes its input. Tensors
/// on a device are exchanged by the CPU, for which the host waits.
///
/// Throws UsageError where replicas do not meet (ReplicaContext::group_of_all), for an axis or root
/// out of range and for other reductions than sum and mean; Mismatch; PeerLost; Timeout.
/// Thread rule: the replica's own thread, forward and backward.
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <vector>

#include "tutti/strategy/replica_context.h"

namespace torch::nn {
class Module;
}

namespace tutti::nn {

/// Sum or mean over the replicas of `x`, of one shape on all of them.
at::Tensor all_reduce(ReplicaContext& replica, const at::Tensor& x, ReduceOp op = ReduceOp::sum);

/// The same of several tensors at once: one collective for all of a dtype, however many they are,
/// with the bits of one each. Of as many, of one shape and dtype each, on all replicas.
std::vector<at::Tensor> all_reduce(ReplicaContext& replica, const std::vector<at::Tensor>& xs,
                                   ReduceOp op = ReduceOp::sum);

/// All replicas' `x` along `axis`, in rank order. Sizes along it may differ, and may be 0; the
/// other dimensions are the same on all. A negative axis counts from the end; a scalar has none.
at::Tensor all_gather(ReplicaContext& replica, const at::Tensor& x, int64_t axis = 0);

/// Part rank() of the sum or mean over the replicas of `x`, of one shape on all of them, cut along
/// `axis`. `sizes` of the parts, one a replica, the same on all, together x.size(axis); empty:
/// equal parts, and UsageError when the size does not divide.
at::Tensor reduce_scatter(ReplicaContext& replica, const at::Tensor& x, ReduceOp op = ReduceOp::sum,
                          int64_t axis = 0, const std::vector<int64_t>& sizes = {});

/// Replica `root`'s `x`. That of the others says nothing but its shape and dtype, which are the
/// same on all.
at::Tensor broadcast(ReplicaContext& replica, const at::Tensor& x, int root = 0);

/// `x` is cut along `axis`, and part s goes to replica s; the parts that come here stand in rank
/// order. `sizes` of this replica's parts, one a replica, together x.size(axis); empty: equal
/// parts. What comes may be longer or shorter than what went; the other dimensions are the same on
/// all.
at::Tensor all_to_all(ReplicaContext& replica, const at::Tensor& x, int64_t axis = 0,
                      const std::vector<int64_t>& sizes = {});

/// Base of a module whose forward, in training, waits for the same call on every other replica, as
/// one does that calls these functions: Model::fit then has replicas without samples call it too,
/// with empty parts, and refuses strategies where replicas do not meet.
class MeetsInForward {
 public:
  virtual ~MeetsInForward() = default;
};

/// Whether a module, or one inside it, is such.
bool meets_in_forward(const torch::nn::Module& module);

}  // namespace tutti::nn
