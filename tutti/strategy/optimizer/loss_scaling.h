/// How a replica's part of a loss is scaled, so that gradients which are SUMMED over replicas are
/// those of the whole.
///
/// Averaging belongs to the loss, as in tf.distribute: Optimizer adds the replicas' gradients and
/// divides by nothing. (PyTorch's DDP divides by the number of replicas instead, which is right for
/// equal parts alone.) Thread rule: pure functions; any thread.
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <span>
#include <vector>

#include "tutti/strategy/replica_context.h"

namespace tutti {

/// sum(per_sample) / global_batch_size: this replica's part of the mean over the global batch.
/// Zero, with a graph, for a replica without samples.
///
/// per_sample         [batch, ...], one loss a sample or more (Reduction::None); a scalar is a mean
///                    or a sum already: UsageError
/// global_batch_size  true number of samples of the whole step, >= 1:
/// DistributedBatch::global_size.
///                    There is no default: local size * replicas is wrong for partial batches.
at::Tensor average_loss(const at::Tensor& per_sample, int64_t global_batch_size);

/// sum(per_sample * sample_weights) / global_batch_size: a weight of 0 leaves a sample out of the
/// sum, not out of the count, as in Keras.
///
/// sample_weights  [batch], of a floating dtype: the weight of a sample for all its losses; no
///                 gradient goes there. UsageError for other shapes and integers.
at::Tensor average_loss(const at::Tensor& per_sample, const at::Tensor& sample_weights,
                        int64_t global_batch_size);

/// sum(losses) / num_replicas_in_sync: this replica's part of a loss that does not depend on its
/// samples (weight decay), which every replica computes in full. UsageError for an undefined
/// tensor.
at::Tensor scale_regularization_loss(const ReplicaContext& replica, const at::Tensor& losses);

/// d loss / d parameter, one a parameter, undefined where the loss does not depend on it and for a
/// frozen one (which does not require gradients); `grad` of the parameters stays as it is. Of this
/// replica's loss alone: Optimizer::apply adds them up.
///
/// loss  one element, with a graph, which is freed; UsageError without one, and when no parameter
///       requires gradients
std::vector<at::Tensor> gradients(const at::Tensor& loss, std::span<const at::Tensor> parameters);

}  // namespace tutti
