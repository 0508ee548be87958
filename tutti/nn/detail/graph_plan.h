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

using Tensors = c10::SmallVector<at::Tensor, 4>;

/// A layer as it is planned.
struct PlannedLayer {
  const GraphStep* step;  ///< forward alone: the module may be gone before its backward pass
  Op op;
  Activation activation = Activation::none;
  bool passes = false;
  std::vector<int> inputs{};
  bool keeps_output = false;  ///< its value is read again: by its own gradient, or a layer's
  /// Its parameters have the slots from `slot` on, which are those of other layers that apply it.
  size_t slot = 0, parameters = 0;
  bool is_first_use = true;  ///< the last to give its parameters' gradients
  /// A batch norm that an addition makes: it gives its input, and the addition's forward() gets
  /// what it has kept (KeptOfLayer::others) behind its inputs, of which it is number `norm`.
  bool is_put_off = false;
  int norm = -1;
};

/// What a forward pass keeps of a layer for the backward pass. GraphPlan fills in the parameters
/// and what is needed, the layer's forward() the rest.
struct KeptOfLayer {
  Tensors parameters;  ///< in the order of LayerPlan::parameters, in what the layer computes in
  Tensors masters;     ///< the same in float32, where that is not what it computes in
  Tensors read;        ///< tensors of the module that backward() reads: a write to one is an error
  at::Tensor x, y;     ///< where its gradient is computed from its first input, or from its output
  Tensors others;      ///< whatever else: other inputs, statistics, places, masks
  c10::SmallVector<int64_t, 4> sizes;  ///< of its first input, or as the layer says
  c10::SmallVector<bool, 4> needs_inputs, needs_parameters;  ///< of which a gradient is asked for
  at::ScalarType type = at::kFloat;  ///< of what it gave, and of the gradient that it gets

  bool needs_input(size_t i = 0) const { return needs_inputs[i]; }
  bool needs_parameter(size_t i) const { return needs_parameters[i]; }
  const at::Tensor& trained(size_t i) const { return masters.empty() ? parameters[i] : masters[i]; }
  bool needs_any_input() const;
  bool needs_any() const;
};

struct LayerGradients {
  Tensors inputs;      ///< one for each, or one for all; undefined where it is not needed
  Tensors parameters;  ///< in their order; undefined where one is not needed
  at::Tensor sum;      ///< of a dense layer whose input's gradient is still to be made: of its sum
};

/// What a layer computes in where the pass is in bfloat16 (precision.h). GraphPlan casts what it
/// reads.
enum class InBfloat16 : uint8_t {
  no,        ///< in float32
  yes,       ///< its parameters are cast, too
  as_given,  ///< as its inputs are; parameters stay float32
};

/// How an operator is planned: forward, with what it keeps, and its gradients, by what autograd
/// would call. Without functions: it is not.
struct LayerPlan {
  at::Tensor (*forward)(const PlannedLayer&, GraphStep::Values&, KeptOfLayer&) = nullptr;
  /// `weights_first`: a dense layer leaves its input's gradient to GraphPlan::input_gradient(),
  /// with the same bits.
  LayerGradients (*backward)(const PlannedLayer&, const KeptOfLayer&, const at::Tensor& gradient,
                             bool weights_first) = nullptr;
  /// As many in each pass; undefined where one is absent. Null: it has none.
  Tensors (*parameters)(const GraphStep&) = nullptr;
  bool from_output = false;   ///< its gradient is computed from what it gave
  bool gives_a_view = false;  ///< of its first input
  /// Whether one with these fields is planned. Null: each is.
  bool (*takes)(const Op&) = nullptr;
  /// Whether one with these fields does what a ReLU behind it would, as PlannedLayer::activation
  /// says, when nobody else reads its value. Null: it does not.
  bool (*takes_relu)(const Op&) = nullptr;
  InBfloat16 bfloat16 = InBfloat16::no;
};
/// Forward by the step; what is kept is its first input, or what it gives, or its input's sizes.
at::Tensor keep_input(const PlannedLayer& layer, GraphStep::Values& values, KeptOfLayer& kept);
at::Tensor keep_output(const PlannedLayer& layer, GraphStep::Values& values, KeptOfLayer& kept);
at::Tensor keep_sizes(const PlannedLayer& layer, GraphStep::Values& values, KeptOfLayer& kept);

/// LayerPlan::parameters of a module with these two.
template <class Module>
Tensors weight_and_bias(const GraphStep& step) {
  const auto& own = *static_cast<const Module*>(step.module);
  return {own.weight, own.bias};
}

class GraphPlan : public std::enable_shared_from_this<GraphPlan> {
 public:
  /// `steps` must outlive run(), not the backward pass.
  GraphPlan(const Graph& graph, const std::vector<GraphStep>& steps);

  /// Why the graph is left to autograd: "batch_norm2d \"norm\""; "" when it is not.
  const std::string& unknown() const noexcept { return unknown_; }

  /// Whether a forward pass of these can be planned: on the CPU, float32 or, where the graph has it
  /// so, int64, of one batch, of which no gradient is asked for; and a parameter is trained. In
  /// float32, or in an autocast's bfloat16.
  bool takes(at::TensorList inputs) const;

  /// Outputs, in the graph's order, with a graph behind them.
  std::vector<at::Tensor> run(at::TensorList inputs) const;

 private:
  friend struct PlannedBackward;

  using Kept = KeptOfLayer;
  using Layer = PlannedLayer;

  void place_parameters(const Graph& graph);
  void fuse_relus(const std::vector<int>& readers);
  void fuse_norms(const std::vector<int>& readers);
  void note_what_is_read_again(const std::vector<int>& readers);
  bool takes_parameters() const;
  static void cast(const Layer& layer, GraphStep::Values& values, Kept& kept);
  static at::Tensor forward(const Layer& layer, GraphStep::Values& values, Kept& kept);
  static LayerGradients backward(const Layer& layer, const Kept& kept, const at::Tensor& gradient,
                                 bool weights_first);
  static at::Tensor input_gradient(const Kept& kept, const at::Tensor& gradient,
                                   const at::Tensor& of_sum);

  std::vector<Layer> layers_;  // by node of the graph
  std::vector<int> inputs_, outputs_;
  size_t slots_ = 0;
  std::string unknown_;
};

}  // namespace tutti::nn::detail
