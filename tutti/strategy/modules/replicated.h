/// Replicated<M>: one copy of a model per local replica, and the Optimizer that trains them as one.
#pragma once

#include <torch/types.h>

#include <concepts>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tutti/optim/loss_scale.h"
#include "tutti/strategy/strategy.h"
#include "tutti/sync/piece.h"
#include "tutti/sync/updater.h"

namespace torch::nn {
class Module;
}

namespace tutti {

class SparseTables;
class WholeModel;

/// What is known of modules that are parts of a model.
struct ModelParts {
  /// By name, the parameters of a module that are pieces; empty: none are.
  std::function<std::map<std::string, Piece>(const torch::nn::Module& module)> pieces_of{};
  /// Parameters and buffers of the whole model, in its order; empty: in that of ranks.
  std::function<std::vector<std::string>()> order{};
};

/// The modules of all local replicas, without their type. Made once, under a strategy: the factory
/// runs once per replica, one after another, each time from the same seed; replica 0's values win.
/// Ranks whose models differ (number, names, shapes, dtypes) all get a Mismatch that names the
/// first difference. On a mesh each rank has its part of a model, and those of one part are alike.
/// Cheap to copy; copies share the modules.
class ReplicatedModules {
 public:
  /// Makes what local rank `local` computes.
  using Factory = std::function<std::shared_ptr<torch::nn::Module>(int local)>;
  ReplicatedModules(Strategy strategy, Factory factory, const ModelParts& parts = {});

  const std::shared_ptr<torch::nn::Module>& module(int local_rank) const;
  /// The same by replica; UsageError for one of another strategy.
  const std::shared_ptr<torch::nn::Module>& module(const ReplicaContext& replica) const;
  int size() const noexcept;  ///< local replicas
  Strategy strategy() const;
  /// On a mesh where several ranks compute a replica; null elsewhere.
  const WholeModel* whole() const noexcept;

  /// Training mode (dropout, batch statistics) on all modules, or evaluation mode. A frozen batch
  /// norm, none of whose parameters requires gradients, stays in evaluation mode: it normalises by
  /// its running statistics and leaves them (the rule of Keras). Strategy::run looks for them too.
  void train(bool on = true) const;

  /// Buffers as saved and compared: floating ones averaged in rank order, others rank 0's; the same
  /// on every worker, and on a mesh those of the whole model. Collective over workers.
  std::vector<std::pair<std::string, at::Tensor>> merged_buffers() const;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

/// M is a torch ModuleHolder (local() returns the holder) or a Module (local() returns
/// shared_ptr<M>).
template <class M>
class Replicated {
  static constexpr bool kHolder = requires(M m) { m.ptr(); };

 public:
  /// `factory()` returns an M (holder), or an M or a shared_ptr<M> (module).
  template <class Factory>
  Replicated(Strategy strategy, Factory factory)  // NOLINT(performance-unnecessary-value-param)
      : modules_(std::move(strategy), [factory](int) mutable { return as_module(factory()); }) {}

  /// This replica's model; the holder or pointer shares it.
  auto local(const ReplicaContext& replica) const {
    auto typed = std::dynamic_pointer_cast<Contained>(modules_.module(replica));
    if constexpr (kHolder)
      return M(std::move(typed));
    else
      return typed;
  }
  /// The same modules without their type: what Optimizer takes.
  const ReplicatedModules& modules() const noexcept { return modules_; }
  operator const ReplicatedModules&() const noexcept {  // NOLINT: a Replicated is its modules
    return modules_;
  }

 private:
  static auto contained_type() {
    if constexpr (kHolder)
      return std::type_identity<typename M::ContainedType>{};
    else
      return std::type_identity<M>{};
  }
  using Contained = typename decltype(contained_type())::type;

  template <class Made>
  static std::shared_ptr<torch::nn::Module> as_module(Made made) {
    if constexpr (requires { made.ptr(); })
      return made.ptr();
    else if constexpr (requires { made.get(); })
      return made;
    else
      return std::make_shared<Made>(std::move(made));
  }

  ReplicatedModules modules_;
};

/// What a step makes of a batch: the loss that is minimised, and what the caller wants to read.
struct StepLoss {
  at::Tensor loss;  ///< one element
  std::vector<at::Tensor> outputs{};
};
/// From tensors on the replica's device alone: a step that its device makes again by itself sees
/// nothing else of a later batch.
using StepFunction = std::function<StepLoss(at::TensorList inputs)>;

/// Trains replicated modules. Bound once: owns the optimizer's state, follows the world. Cheap to
/// copy; copies share the state.
class Optimizer {
 public:
  /// One of tutti's rules, clipping and groups where wanted (optim::Recipe): the fused step, or,
  /// where the strategy's options name a reduction or a compression, that and an update on every
  /// replica.
  Optimizer(const ReplicatedModules& modules, const optim::Recipe& recipe);
  /// Any torch optimizer, made once per replica; gradients are reduced first. What `options` do not
  /// choose (reduction, compression) is the strategy's choice.
  Optimizer(const ReplicatedModules& modules, TorchOptimizerFactory factory,
            const ReplicatedOptions& options = {});
  /// One of our rules on top of all-reduce, on every replica: the fused step's oracle and peer.
  Optimizer(const ReplicatedModules& modules, const optim::Recipe& recipe,
            const ReplicatedOptions& options);

  /// Backward from `loss` (this replica's part, scaled by the global batch), SUM over replicas, one
  /// update. When it returns the parameters are new and the gradients cleared; under one_device,
  /// whose replicas take turns, once run() returns, so that a run() has one step there. Called by
  /// every replica in each step. UsageError under one_device for a replica's second step in a
  /// run(), for an operator that reads in it what the step is still to change, and from run() when
  /// only some replicas have taken part; elsewhere the others wait.
  /// UsageError for a loss that is not zero and has no graph, and on all replicas where no loss has
  /// given any of its parameters a gradient: nothing would be trained.
  /// parameter_server, multi_worker over several hosts: parameters may come later, each before its
  /// first operator, all before run() returns; who reads memory calls require_ready() first.
  void minimize(ReplicaContext& replica, const at::Tensor& loss);
  /// The same from the losses of this replica's samples, [part, ...], which may be none: of
  /// average_loss(per_sample, global_batch_size).
  void minimize(ReplicaContext& replica, const at::Tensor& per_sample, int64_t global_batch_size);

  /// The same of `step(inputs).loss`; gives its outputs, without their graphs. With
  /// StrategyOptions::step_graph `step` is called in the first steps alone: then what it has queued
  /// is one graph, which the device does again with the inputs of later steps. Inputs of other
  /// shapes go on as without it; outputs are to be read or copied before the next step. In it
  /// nothing may make the host wait or draw random numbers, and what is trained must not change:
  /// Error. UsageError for inputs elsewhere.
  std::vector<at::Tensor> minimize(ReplicaContext& replica, const std::vector<at::Tensor>& inputs,
                                   const StepFunction& step);

  /// As minimize, from gradients that are there already (tutti::gradients, clipped or changed as
  /// one likes): SUM over replicas, one update. One a parameter, in the order of parameters(), of
  /// its shape and dtype; undefined where there is none. UsageError for another number of them, for
  /// parameters that have a `grad` beside, and for models with embedding tables, whose rows get
  /// gradients from minimize alone.
  void apply(ReplicaContext& replica, std::span<const at::Tensor> gradients);

  /// What it trains on this replica: each parameter once, in the order of the model.
  const std::vector<at::Tensor>& parameters(const ReplicaContext& replica) const;

  /// Backward from `loss`; its gradients are kept on this replica, nothing is sent, and the next
  /// minimize() or abstain() adds them to its own. Scale the loss by all samples of the step
  /// (DistributedBatch::group_size). Not a step: nothing counts it, and replicas may make different
  /// numbers of calls.
  void accumulate(ReplicaContext& replica, const at::Tensor& loss);

  /// Takes part in the step without a loss: with what was accumulated, else with weight zero, as a
  /// replica without samples does.
  void abstain(ReplicaContext& replica);

  /// Clears the gradients of what it trains on this replica: those that a backward() outside of
  /// minimize() has left, such as that of another optimizer's loss, and those that accumulate() has
  /// kept. Also between forward and minimize(): what a loss to come has looked up stays. Not needed
  /// after minimize(), apply() and abstain(), which leave none.
  void zero_grad(ReplicaContext& replica);

  /// Takes part in the step, and has all replicas leave it out: no parameter, no state and no
  /// version changes on any. For a replica whose loss is not finite; nobody waits longer for it
  /// than for minimize(). `loss` where there is one, for whatever backward has to do with the
  /// others. With scaled losses it is as a step that overflowed: the scale becomes smaller, and it
  /// counts. UsageError with parameter servers.
  void leave_out(ReplicaContext& replica, const at::Tensor& loss = {});

  /// On a device, whose answer nobody waits for: the step to come is left out on all replicas where
  /// `bad` (one element, on this replica's device) of any is not 0, and all steps after it, until
  /// forget_left_out(). Before minimize(). UsageError for a replica on the CPU: leave_out() there.
  void leave_out_if(ReplicaContext& replica, const at::Tensor& bad);
  /// How many steps were left out for that, which no longer count in version(). Between runs.
  int64_t forget_left_out();

  /// What Vote says of the step to come, before minimize(); `signal` is asked as the update begins.
  void tell(const ReplicaContext& replica, std::function<int()> signal, bool meets);
  /// Of the last step that the host has made (step_graph: the device makes others).
  const Verdict& verdict(const ReplicaContext& replica) const;

  /// Forgets what was accumulated, and gradients that a backward() left which did not come to its
  /// end, for a loop that begins anew after an error. Between runs.
  void forget_accumulated();

  /// From now on losses are multiplied before backward() and gradients divided after it; a step in
  /// which a gradient of any replica is not finite changes no parameter and no optimizer state on
  /// any, but counts in version(). Nothing is sent before backward() has ended. On devices the
  /// scale is theirs, and no host waits for it; that it fell too low (LossScale::update) is said
  /// some steps later. Between runs. Throws UsageError with embedding tables and with parameter
  /// servers.
  void scale_losses(const optim::LossScale& scale);
  /// That of the next step, between runs; none: not scaled. Waits for what devices have yet to do.
  std::optional<optim::LossScale> loss_scale() const;

  /// Where workers are not in step: gets the newest parameters for the next forward of this
  /// replica. run() begins with it; only whoever makes several steps in one run() needs to call it.
  void prepare(ReplicaContext& replica);

  /// Takes effect with the next update; between runs, the same on every worker.
  void set_learning_rate(double learning_rate);
  double learning_rate() const;
  int64_t version() const;  ///< updates applied so far
  /// Bytes of gradients that a replica sent in the last step (Updater::wire_bytes_per_step).
  int64_t wire_bytes_per_step() const;
  Updater& updater() const noexcept;
  const ReplicatedModules& modules() const noexcept;  ///< that it trains
  SparseTables* tables() const noexcept;              ///< null: the model has no embedding tables

 private:
  void hand_in(int local, PartInStep part);
  void exchange(int local, PartInStep part);
  void hand_in_waiting(int local);
  void hand_in_scaled(ReplicaContext& replica, bool leaves_out = false);

  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace tutti
