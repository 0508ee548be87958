/// One node of a graph, ready to run: what GraphModule walks over, and GraphPlan plans from.
/// Not for users. Thread rule: that of the module.
#pragma once

#include <torch/nn/module.h>
#include <torch/types.h>

#include <string>
#include <vector>

#include "tutti/nn/dense.h"
#include "tutti/nn/graph.h"

namespace tutti::nn::detail {

struct GraphStep {
  struct Input {
    int node;
    bool last_use;  ///< not needed afterwards: let go of it
  };
  using Values = c10::SmallVector<at::Tensor, 4>;

  Op op;
  torch::nn::Module* module = nullptr;  ///< owned by the module tree
  at::Tensor parameter{};               ///< of a layer that is one
  std::vector<Input> inputs{};
  bool in_place = false;                     ///< relu over its input's memory
  Activation activation = Activation::none;  ///< of a dense layer, which has taken the relu's place
  bool passes = false;                       ///< gives its input: its work is done by another step
  std::string name{};                        ///< the node's, for errors

  /// What the layer gives; `values` are its inputs.
  at::Tensor run(const Values& values) const;
};

/// The steps of a graph that is computed from node `begin` to before node `end`, one for each node
/// of it, without state. Of a part of the graph: a ReLU that a dense layer has taken the place of
/// passes wherever the graph is cut, so that bits do not depend on that; memory is not written
/// into, and layers are not exchanged, across the ends.
std::vector<GraphStep> steps_of(const Graph& graph, size_t begin, size_t end);

/// UsageError unless there is one tensor for each of `ports`, of its node's shape.
void check_inputs(const Graph& graph, const std::vector<Port>& ports,
                  at::ArrayRef<at::Tensor> inputs);

/// RowError, of `what`, for the first of `tokens` [batch, ...] that is below 0 or beyond the
/// vocabulary.
void require_tokens(const std::string& what, const at::Tensor& tokens, int64_t vocabulary);

/// RowError for the first number of steps, or mask of them, that a recurrent layer does not take,
/// of those that are inputs of the graph themselves. `inputs` are the graph's, on the CPU: where
/// what the layer is given is on a device, nobody looks at it there.
void require_steps_of_inputs(const Graph& graph, at::ArrayRef<at::Tensor> inputs);

/// The same values with channels innermost, where LibTorch's CPU convolutions and pools are fastest
/// (docs/design/graph.md). What comes after follows its input's layout.
at::Tensor channels_last(const at::Tensor& x);

/// x, the gradient of which is contiguous whatever comes back: where a layer would hand on the
/// order of its reader's, so that layers before it compute the same whether it has travelled or
/// not.
at::Tensor with_contiguous_gradient(const at::Tensor& x);

}  // namespace tutti::nn::detail
