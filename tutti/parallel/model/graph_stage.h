/// GraphStage: consecutive layers of a graph as a torch module, with this rank's blocks of those
/// that a plan cuts.
///
///   const auto stages = parallel::ranges_by_names(graph, {"transformer.h.2.ln_1"});
///   torch::manual_seed(7);  // the same on all ranks
///   auto second = std::make_shared<parallel::GraphStage>(graph, stages, 1, tensor, plan);
///   parallel::Stage stage = parallel::stage_of(second);  // for a pipeline
///
/// Stages chained have the bits of nn::GraphModule wherever the graph is cut, forward and backward,
/// where no layer is cut into blocks; with T blocks those of T blocks on one rank, whatever the
/// ranks (docs/design/model_parallel.md). Thread rule: that of a torch module; forward and backward
/// by the rank's own thread.
#pragma once

#include <torch/nn/module.h>
#include <torch/types.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tutti/nn/graph.h"
#include "tutti/parallel/stages/recompute.h"
#include "tutti/parallel/stages/stage.h"
#include "tutti/parallel/tensor/plan.h"
#include "tutti/parallel/tensor/tensor_group.h"
#include "tutti/sync/piece.h"

namespace tutti::nn::detail {
struct GraphStep;
struct LayerState;
}  // namespace tutti::nn::detail

namespace tutti::parallel {

namespace detail {
struct ChannelsInnermost;
}

/// Places in Graph::nodes(), which are in the order of execution: [begin, end).
struct StageRange {
  size_t begin = 0;
  size_t end = 0;
  bool operator==(const StageRange&) const = default;
};

/// A cut before each of these layers, which are in the graph's order; none: one stage. UsageError
/// for a name that no layer has, with the nearest one; names in another order, or twice; a cut that
/// leaves a stage without layers.
std::vector<StageRange> ranges_by_names(const nn::Graph& graph,
                                        const std::vector<std::string>& names);

/// Parameters and buffers have the names, shapes and order that nn::GraphModule of the whole graph
/// gives them; those of layers that are cut the shape of this rank's piece.
class GraphStage : public torch::nn::Module {
 public:
  /// Draws the initial values of the whole graph from LibTorch's default generator, one layer after
  /// another, as nn::GraphModule does, and keeps this rank's: at most one layer more is held at a
  /// time. With the same seed all stages and ranks together have the values of nn::GraphModule.
  ///
  /// stages  ranges that together are the whole graph, in order
  /// stage   of them, this one's place
  ///
  /// Throws UsageError as roles_of() does; for ranges that leave nodes out, or have no layer; for a
  /// cut between columns and rows; for a layer with parameters that three stages apply, or with
  /// buffers that two do. No collective call. Threads of a process make their stages one at a time,
  /// each after the seed, since LibTorch has one default generator for all.
  GraphStage(nn::Graph graph, std::vector<StageRange> stages, int stage,
             TensorGroup group = TensorGroup(), const Plan& plan = {});
  ~GraphStage() override;

  /// [batch, shape...] for each of inputs(), of one batch, the same on all ranks of the group;
  /// gives one for each of outputs(). Any batch size, 0 included; what goes by is given as it is.
  /// UsageError for another number of tensors or another shape; what tensor_functions.h says.
  std::vector<at::Tensor> forward(at::TensorList inputs);

  /// forward() in spans, whose layers `recompute` tells apart. They live as long as this module.
  /// UsageError for what the graph, or this stage of it, cannot do.
  std::vector<Span> spans(const Recompute& recompute);

  /// What it takes and gives: of the first stage the graph's inputs, of the last its outputs, in
  /// their order. Elsewhere every value from before a cut that is read behind it, by place in the
  /// graph: of layers, of inputs, and outputs of the graph that have been computed.
  const std::vector<Border>& inputs() const noexcept { return inputs_; }
  const std::vector<Border>& outputs() const noexcept { return outputs_; }

  /// Parameters of layers that another stage applies too. Where that is an earlier one, a copy with
  /// the same values, which requires a gradient and is not among parameters(): to() does not move
  /// it.
  const std::vector<Tie>& ties() const noexcept { return ties_; }
  /// This rank's pieces of parameters that are cut, by name; others are whole.
  const std::map<std::string, Piece>& pieces() const noexcept { return pieces_; }

  const nn::Graph& graph() const noexcept { return graph_; }
  const StageRange& range() const noexcept { return stages_[stage_]; }
  bool is_first() const noexcept { return stage_ == 0; }
  bool is_last() const noexcept { return stage_ + 1 == stages_.size(); }

 private:
  struct Held;
  struct Walk;
  Walk walk(StageRange range) const;
  std::vector<at::Tensor> run(const Walk& walk, at::TensorList inputs) const;
  void make_states();
  void keep_state(const nn::Node& node, const nn::detail::LayerState& state);
  void cut_state(const nn::Node& node, const nn::detail::LayerState& state, bool owner);
  Held computed(const Walk& walk, size_t place, std::vector<Held>& values) const;
  Held computed_in_blocks(const nn::detail::GraphStep& step, size_t place, const Held& x) const;

  nn::Graph graph_;
  std::vector<StageRange> stages_;
  size_t stage_;
  TensorGroup group_;
  std::vector<NodeRole> roles_;
  std::unique_ptr<Walk> whole_;  // of this stage
  std::vector<Border> inputs_, outputs_;
  std::vector<detail::ChannelsInnermost> order_;  // one a node
  std::map<std::string, std::vector<int>> stages_by_layer_;
  std::vector<std::shared_ptr<torch::nn::Module>> copies_;  // of layers of earlier stages
  std::vector<Tie> ties_;
  std::map<std::string, Piece> pieces_;
};

/// Several stages of one rank, of the places `own`, all with the values of one drawing: LibTorch's
/// default generator is left as one GraphStage leaves it.
std::vector<std::shared_ptr<GraphStage>> make_stages(const nn::Graph& graph,
                                                     const std::vector<StageRange>& stages,
                                                     const std::vector<int>& own,
                                                     const TensorGroup& group = TensorGroup(),
                                                     const Plan& plan = {});

/// What a pipeline takes; without borders at the ends of the graph. It holds the module.
Stage stage_of(const std::shared_ptr<GraphStage>& module, const Recompute& recompute = {});

}  // namespace tutti::parallel
