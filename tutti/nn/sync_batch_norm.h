/// nn::SyncBatchNorm: batch normalisation over the samples of all replicas.
///
/// BatchNorm in a replica sees its own part of the batch alone, so a training with small parts, or
/// with more replicas, is another training. This one normalises by mean and variance of the global
/// batch: any number of replicas, with parts of any sizes, computes what one replica with the whole
/// batch does, but for rounding. docs/guide/custom_loops.md says what it costs.
#pragma once

#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/pimpl.h>

#include <memory>
#include <ostream>

#include "tutti/nn/collectives.h"

namespace tutti::nn {

/// Parameters, buffers, options and initial values are those of torch::nn::BatchNorm1d, 2d and 3d,
/// so weights move between them; this one takes x of any of their shapes.
///
/// In training, in Strategy::run or where an OnGroup lives, for x [batch, channels, ...] of this
/// replica with n values a channel and N = sum of n over all replicas (Ioffe and Szegedy 2015,
/// arXiv:1502.03167):
///
///   mean, var     of the N values; parts combined in rank order as Chan, Golub and LeVeque 1979,
///                 http://i.stanford.edu/pub/cstr/reports/cs/tr/79/773/CS-TR-79-773.pdf: in double
///   y             (x - mean) / sqrt(var + eps) * weight + bias
///   running       (1 - momentum) * running + momentum * (mean, var * N / (N - 1)): the same on all
///                 replicas; momentum nullopt: the mean over all batches
///   backward      of the sum of the replicas' losses, exact: dx has what comes through mean and
///                 var of the others' outputs; weight and bias get this replica's part, which
///                 Optimizer adds up
///
/// A part may have no samples, but must come: a training forward waits for that of all other
/// replicas, and so does its backward. Model::fit takes care of that. One all-gather of 2 channels
/// + 1 doubles forward, one all-reduce of 2 channels doubles backward; none with one replica, which
/// has the bits of BatchNorm, and none in evaluation, which is BatchNorm's.
///
/// Throws UsageError for x of another number of channels or another dtype, when N is below 2, in
/// training outside of run() and OnGroup, where replicas do not meet
/// (ReplicaContext::group_of_all), and for second derivatives; what Group throws. Thread rule: that
/// of a module; forward and backward on the replica's thread.
class SyncBatchNormImpl : public torch::nn::BatchNormImplBase<0, SyncBatchNormImpl>,
                          public MeetsInForward {
 public:
  explicit SyncBatchNormImpl(int64_t channels)
      : SyncBatchNormImpl(torch::nn::BatchNormOptions(channels)) {}
  explicit SyncBatchNormImpl(const torch::nn::BatchNormOptions& options);

  /// x: [batch, channels, ...], float32, float64, or of 16 bits with float32 parameters; the same
  /// shape and dtype come back.
  at::Tensor forward(const at::Tensor& x);

  void pretty_print(std::ostream& stream) const override;

 protected:
  void _check_input_dim(const at::Tensor& x) override;

 private:
  void update_running(const ReplicaContext& replica, const at::Tensor& mean,
                      const at::Tensor& variance);
};

/// Holder, as torch::nn's modules have one: nn::SyncBatchNorm norm(64); norm(x).
class SyncBatchNorm : public torch::nn::ModuleHolder<SyncBatchNormImpl> {
 public:
  using torch::nn::ModuleHolder<SyncBatchNormImpl>::ModuleHolder;
};

}  // namespace tutti::nn
