/// StagedModel: a model on a mesh, for loops of one's own. Stages and blocks as Model has them.
///
///   StagedModel model(strategy, graph, {.cut = parallel::before({"output"})});
///   Optimizer optimizer(model.modules(), optim::adam());
///   strategy.run([&](ReplicaContext& replica) {
///     auto [x, y] = batch.local(replica);
///     auto gradients = model.step(replica, {x}, {y}, loss, {.microbatches = 8});
///     optimizer.apply(replica, gradients);
///     model.updated(replica);
///   });
///
/// Every rank makes the same calls; those of one replica with the same rows. On a single rank the
/// model is whole, and this is a loop over microbatches. r replicas of m microbatches give the bits
/// of any other r' m' = r m, with m powers of two, where r m divides the batch; others are shared
/// out to replicas first, then to microbatches, whose sizes are then of this layout.
/// docs/guide/model_parallel.md. Thread rule: made, and whole(), by the strategy's thread; what
/// takes a replica by that one's.
#pragma once

#include <torch/types.h>

#include <concepts>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "tutti/nn/sample_context.h"
#include "tutti/parallel/model/model_layout.h"
#include "tutti/strategy/modules/replicated.h"
#include "tutti/train/model/detail/erased_model.h"
#include "tutti/train/model/weights.h"

namespace tutti {

struct StagedStep {
  int microbatches = 1;  ///< 1 to 4096, the same on all ranks
  /// Of the first row that this replica has, for dropout. Unset: a model with dropout in training
  /// mode is an error.
  std::optional<nn::SamplePlace> place{};
};

class StagedModel {
 public:
  /// `factory()` returns what Model's may: on a mesh with stages or pieces of layers an nn::Graph,
  /// or a torch::nn::Sequential of ModelLayout::input. Collective over the ranks. Throws UsageError
  /// for a layout that does not fit model or mesh, Mismatch for ranks whose models differ.
  template <std::invocable Factory>
  StagedModel(Strategy strategy, Factory factory, const parallel::ModelLayout& layout = {})
      : StagedModel(std::move(strategy),
                    ErasedFactory([factory]() mutable { return detail::erase(factory()); }), layout,
                    Erased()) {}
  StagedModel(Strategy strategy, const nn::Graph& graph, const parallel::ModelLayout& layout = {})
      : StagedModel(std::move(strategy), [graph] { return graph; }, layout) {}

  /// Of this worker's ranks; for an Optimizer.
  const ReplicatedModules& modules() const noexcept;

  /// One element, with its graph: what these samples add to the loss of the whole batch. Divided by
  /// the global batch (average_loss): parts are added.
  using Loss =
      std::function<at::Tensor(at::TensorList outputs, const std::vector<at::Tensor>& targets)>;

  /// Forward and backward of this replica's part of a batch: sums of gradients over its
  /// microbatches, in the order of Optimizer::parameters. Undefined: frozen, not used, or the copy
  /// of a tied parameter. Every rank of the replica gives tensors of the same number of rows, from
  /// 1 on, on the CPU; only the first stage's rank reads inputs, the last one's targets, and `loss`
  /// is called there alone. A replica without rows calls Optimizer::abstain in place of this.
  ///
  /// Throws UsageError for tensors of unlike rows, a number of microbatches out of range, or one
  /// that the schedule does not take; Timeout, PeerLost and Mismatch, which say who waited for
  /// whom, and what forward and loss throw. The mesh has failed then.
  std::vector<at::Tensor> step(ReplicaContext& replica, const std::vector<at::Tensor>& inputs,
                               const std::vector<at::Tensor>& targets, const Loss& loss,
                               const StagedStep& options = {});

  /// After each update: copies of tied parameters on other stages get the new values. By every
  /// rank; throws as step().
  void updated(ReplicaContext& replica);

  /// Outputs of some samples, without gradients: on the ranks of the last stage, empty on others.
  /// Modules are in training mode or not, as modules().train() left them. Throws as step().
  std::vector<at::Tensor> forward(ReplicaContext& replica, const std::vector<at::Tensor>& inputs);

  /// Whether a rank is the one of its replica that counts losses and metrics.
  bool gives_outputs(const ReplicaContext& replica) const;

  /// Parameters and merged buffers of the whole model, the same on every worker: for
  /// weights_sha256() and save_weights(). Collective, between runs.
  ModelState whole() const;

 private:
  using ErasedFactory = std::function<detail::ErasedModel()>;
  struct Erased {};  // tells the constructor below from those above
  StagedModel(Strategy strategy, ErasedFactory factory, const parallel::ModelLayout& layout,
              Erased tag);

  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace tutti
