/// Horovod's shape, for a LibTorch loop that exists already: wrap its optimizer, broadcast once.
///
///   tutti::Group world = tutti::join();
///   tutti::broadcast_parameters(*model, world);
///   tutti::DistributedOptimizer distributed(*model, optimizer, world);
///   ... loss.backward(); distributed.step();
///
/// Here gradients are AVERAGED over ranks, as in Horovod and DDP, since an existing loop divides
/// its loss by its own batch. (Strategies sum, and divide the loss by the global batch.) The group
/// may be some ranks of the job: Group::split().
#pragma once

#include <functional>
#include <memory>

#include "tutti/comm/group/group.h"
#include "tutti/sync/replicated/broadcasts.h"
#include "tutti/sync/updater.h"

namespace tutti {

struct DistributedOptimizerOptions {
  ReduceOp op = ReduceOp::mean;  ///< mean or sum
  ReplicatedOptions buckets{};
  Millis time_limit{kDefaultTimeLimit};
  /// Gradients are sent in the backward pass of this number before a step, and those of all are
  /// added up: divide the losses. A step() that comes earlier sends what there is. At least 1.
  int backward_passes_per_step = 1;
  /// This rank's gradients are multiplied by it before they are sent, so that 16-bit sums stay in
  /// range (beside set_weight(), which multiplies too: one over the samples of a rank); finite, not
  /// 0, the same on all ranks.
  double prescale = 1;
  double postscale = 1;  ///< the same of what all get
  /// Gradients of each parameter are combined by Adasum (comm/group/more_reductions.h) instead of
  /// `op`: of float32 and float64, over a power of two ranks, not with another reduction or
  /// compression, sparse gradients, weights and average_losses.
  bool adasum = false;
  /// What an optimizer sees of closures that return other losses on the ranks: of what gradients
  /// are, their mean, by weight (their sum with ReduceOp::sum), times prescale and postscale. Else
  /// losses that differ are a Mismatch.
  bool average_losses = false;
};

/// Thread rule: used from the one thread of its rank. module and optimizer must outlive it.
/// Gradients are all-reduced while backward goes on; a parameter that no rank used is left without
/// gradient, one that some ranks did not use counts as zero there. UsageError, with the parameter's
/// name, for double backward, a backward() before step() more than was said, but in no_sync(), and,
/// on all ranks, for a step in which no parameter has a gradient on any.
///
/// Sparse gradients, of torch's embeddings with sparse(true) in the module, are gathered: rows that
/// ranks have, added in rank order, once backward is over. Others are a UsageError.
///
/// The optimizer may get parameters of the module (add_param_group), and parameters may be frozen
/// and thawed (requires_grad), between steps and on all ranks alike: Mismatch on all that names the
/// first one which is not. Compression goes on with what it has held back. Learning rates are
/// compared in each step, and how many steps each rank's optimizer has made: Mismatch on all where
/// they differ. Other options of the optimizer (momentum) are not: broadcast_optimizer_state().
///
/// A Mismatch, and what all ranks throw alike, leaves this one without gradients, so that the next
/// step starts clean. After another error in the midst of an exchange (PeerLost, Timeout, a
/// gradient that is refused on one rank) every call is a UsageError.
class DistributedOptimizer {
  struct State;

 public:
  /// Collective. `optimizer` trains parameters of `module`. Processes that may use the same cores
  /// get as many threads of LibTorch each as there are cores for it, unless OMP_NUM_THREADS or
  /// MKL_NUM_THREADS is set or there are fewer. UsageError for options out of range, and an error
  /// that names their rank on the others; Mismatch on all for options, kinds of optimizer and
  /// parameters that differ between ranks.
  DistributedOptimizer(const torch::nn::Module& module, torch::optim::Optimizer& optimizer,
                       Group group, const DistributedOptimizerOptions& options = {});
  ~DistributedOptimizer();
  DistributedOptimizer(DistributedOptimizer&&) noexcept;

  /// Finishes the all-reduce and lets the optimizer step. Every rank calls it once a step, also one
  /// that had no data. Throws PeerLost, Timeout, Mismatch; UsageError inside of no_sync(), and on
  /// ranks where a backward() came since synchronize(), with which the others end.
  void step();
  /// The same for an optimizer that calls a function, once or often (LBFGS): `closure` clears
  /// gradients, goes backward() once and returns its loss, one number. After each call gradients
  /// are reduced, and the optimizer sees one loss, on all ranks the same. Returns what the
  /// optimizer does. Mismatch on all, naming two ranks, for other losses on them unless
  /// average_losses, and where others call step(). What ends it half-way leaves parameters and the
  /// optimizer's state in the midst of a step: load both again.
  at::Tensor step(const std::function<at::Tensor()>& closure);
  /// Finishes the all-reduce alone: every parameter's grad is the mean (or sum) of all ranks, to be
  /// clipped or looked at, and step() then lets the optimizer step with it, or zero_grad() leaves
  /// the step out, on all ranks. Collective: all ranks call it in a step, or none. Throws as
  /// step(); UsageError a second time before these.
  void synchronize();
  /// Clears gradients. After synchronize() a step is left out by this one: those of the optimizer
  /// and of the module do not say so to the next step. All ranks leave it out, or none (Mismatch in
  /// the next). Passes that nothing was sent of do not count. UsageError once a backward() has
  /// sent.
  void zero_grad();

  /// From the next backward() on, until it is called again: how many samples this rank's loss is
  /// the mean of. The gradient of a step is the mean over all ranks' samples then, not over ranks.
  /// A rank of weight 0 counts nothing. On every rank that has data, or on none: Mismatch on all.
  /// UsageError for a number that is negative or not finite, with ReduceOp::sum, beside compression
  /// that holds back (what it keeps would count by another step's weight), once gradients of this
  /// step are on their way, and on all in a step whose weights are all 0.
  void set_weight(double samples);

  /// This rank has no more data: it takes part in the steps that others still make, until all have
  /// come here; means are those of the ranks with data. Then all have the parameters and the
  /// optimizer's state of the rank that made the last step (of several the lowest), which is
  /// returned, and may go on with steps. Buffers stay each rank's own, and so do a scheduler's
  /// count of steps (where rates then part, the next step is a Mismatch) and what compression has
  /// held back. All ranks call it, each at its end: one that does not is named in an error on the
  /// others, after the time limit or where it leaves. UsageError after a backward() that no step
  /// has taken. Not with modules whose forward waits for other ranks (SyncBatchNorm).
  int join();

  /// While it lives backward() passes add up this rank's gradients, and nothing is sent. It ends
  /// before the DistributedOptimizer.
  class NoSync {
   public:
    ~NoSync();
    NoSync(const NoSync&) = delete;
    NoSync& operator=(const NoSync&) = delete;

   private:
    friend class DistributedOptimizer;
    explicit NoSync(State& state);
    State& state_;
  };
  /// Accumulation: any number of backward passes, which ranks may have different numbers of, and
  /// one behind the scope that takes all along (or none: then step() sends).
  ///
  ///   { const auto apart = distributed.no_sync(); first.backward(); }
  ///   second.backward(); distributed.step();  // of the sum of both: divide the losses
  ///
  /// UsageError where a backward() of this step has sent gradients, between synchronize() and
  /// step() or zero_grad(), inside of another one, and beside backward_passes_per_step.
  [[nodiscard]] NoSync no_sync();

  /// The one that it was made for.
  torch::optim::Optimizer& optimizer() const noexcept;
  /// What compression of gradients has held back on this rank, between steps: for checkpoints. None
  /// without compression.
  NamedTensors held_back() const;
  /// Goes on from that. UsageError naming what does not fit.
  void restore_held_back(const NamedTensors& tensors);

 private:
  std::unique_ptr<State> state_;
};

}  // namespace tutti
