/// GraphPlan: forward and backward of a whole graph as one node of autograd.
///
/// Autograd notes down each operator of a forward pass, and walks over the notes: on small networks
/// that costs as much as the arithmetic. A graph is known before, so its backward pass is planned
/// once: which layer's gradient comes when, which is not needed, which neighbours are one kernel.
/// Each layer calls what autograd would call, so that the bits are the same; a graph with a layer
/// that the plan does not know is left to autograd. docs/design/planned_step.md.
/// Not for users. Thread rule: that of the module, run() and the backward pass.
#pragma once

#include <torch/types.h>

#include <memory>
#include <string>
#include <vector>

#include "tutti/nn/detail/graph_step.h"

namespace tutti::nn::detail {

/// A layer as it is planned.
struct PlannedLayer {
  const GraphStep* step;  ///< forward alone: the module may be gone before its backward pass
  Op op;
  Activation activation = Activation::none;
  bool passes = false;
  std::vector<int> inputs{};
  bool keeps_output = false;  ///< its value is read again: by its own gradient, or a layer's
};

/// What a forward pass keeps of a layer for the backward pass.
struct KeptOfLayer {
  at::Tensor x, weight, bias;
  at::Tensor y;       ///< where its gradient is computed from that
  at::Tensor places;  ///< of a max-pool
  bool needs_input = false, needs_weight = false, needs_bias = false;
};

struct LayerGradients {
  at::Tensor input;  ///< of each input: none has several, and an addition gives all the same
  at::Tensor weight, bias;
  at::Tensor sum;  ///< of a dense layer whose input's gradient is still to be made: of its sum
};

/// How an operator is planned: forward, with what it keeps, and its gradients, by what autograd
/// would call. Without functions: it is not.
struct LayerPlan {
  at::Tensor (*forward)(const PlannedLayer&, GraphStep::Values&, KeptOfLayer&) = nullptr;
  /// `weights_first`: a dense layer leaves its input's gradient to GraphPlan::input_gradient(),
  /// with the same bits.
  LayerGradients (*backward)(const PlannedLayer&, const KeptOfLayer&, const at::Tensor& gradient,
                             bool weights_first) = nullptr;
  bool from_output = false;  ///< its gradient is computed from what it gave
};
/// Forward by the step; what is kept is its first input, or what it gives.
at::Tensor keep_input(const PlannedLayer& layer, GraphStep::Values& values, KeptOfLayer& kept);
at::Tensor keep_output(const PlannedLayer& layer, GraphStep::Values& values, KeptOfLayer& kept);

class GraphPlan : public std::enable_shared_from_this<GraphPlan> {
 public:
  /// `steps` must outlive run(), not the backward pass.
  GraphPlan(const Graph& graph, const std::vector<GraphStep>& steps);

  /// Why the graph is left to autograd: "batch_norm2d \"norm\""; "" when it is not.
  const std::string& unknown() const noexcept { return unknown_; }

  /// Whether a forward pass of these can be planned: float32 on the CPU, of one batch, of which no
  /// gradient is asked for; and a parameter is trained.
  bool takes(at::TensorList inputs) const;

  /// Outputs, in the graph's order, with a graph behind them.
  std::vector<at::Tensor> run(at::TensorList inputs) const;

 private:
  friend struct PlannedBackward;

  using Kept = KeptOfLayer;
  using Layer = PlannedLayer;

  static at::Tensor forward(const Layer& layer, GraphStep::Values& values, Kept& kept);
  static LayerGradients backward(const Layer& layer, const Kept& kept, const at::Tensor& gradient,
                                 bool weights_first);
  static at::Tensor input_gradient(const Kept& kept, const at::Tensor& gradient,
                                   const at::Tensor& of_sum);

  std::vector<Layer> layers_;  // by node of the graph
  std::vector<int> inputs_, outputs_;
  std::string unknown_;
};

}  // namespace tutti::nn::detail
