/// GraphModule: the torch module that an nn::Graph describes.
///
/// Parameters have torch's shapes, names and default initial values, in the order of the graph; a
/// layer named "layer1.0.conv1" lies in nested modules, so weights of torchvision's models load.
/// forward() costs what hand-written LibTorch does: the order of execution and the life of every
/// intermediate tensor are settled when the module is made.
/// Thread rule: as any torch module, one thread at a time; distinct modules are independent.
#pragma once

#include <torch/nn/module.h>

#include <memory>
#include <string>
#include <vector>

#include "tutti/nn/adapted.h"
#include "tutti/nn/graph.h"

namespace tutti::nn {

namespace detail {
class GraphPlan;
struct GraphStep;
}  // namespace detail

class GraphModule : public torch::nn::Module, public Adapted {
 public:
  /// Draws initial values from LibTorch's default generator: seed it with torch::manual_seed. With
  /// `loras` matrices get adapters, which are then all the parameters (adapted.h): what the graph
  /// has is base()'s, batch norms infer, and forward passes are by autograd. UsageError as
  /// lora_matrices().
  explicit GraphModule(Graph graph, const std::vector<Lora>& loras = {});
  GraphModule(const GraphModule&) = delete;  ///< clone() gives one of its own
  ~GraphModule() override;

  /// Of a graph with one input and one output. x: [batch, input_shape...]; gives
  /// [batch, output_shape...]. Any batch size, 0 included. Throws UsageError with both shapes when
  /// x has another one, and for a graph with several inputs or outputs.
  at::Tensor forward(const at::Tensor& x);

  /// Of any graph: a tensor for each of graph().inputs(), all of one batch, gives one for each of
  /// graph().outputs(). Throws UsageError for another number of tensors or another shape.
  std::vector<at::Tensor> forward_all(at::ArrayRef<at::Tensor> inputs);

  const Graph& graph() const noexcept { return graph_; }

  void train(bool on = true) override;

  using torch::nn::Module::to;
  /// On a GPU weights of convolutions lie with channels innermost, and with them all that flows
  /// through: there cuDNN is fastest so, above all in lower precision. On the CPU as LibTorch makes
  /// them, whose convolutions here turn what they take by themselves.
  void to(torch::Device device, bool non_blocking = false) override;
  void to(torch::Device device, torch::Dtype dtype, bool non_blocking = false) override;
  void to(torch::Dtype dtype, bool non_blocking = false) override;

  /// Whether a forward pass with gradients is one node of autograd, whose backward pass was planned
  /// when the module was made (docs/design/planned_step.md): on at first. Off: autograd notes down
  /// every layer. Both give the same bits. Some passes are by autograd in any case: those of a
  /// graph with a layer that the plan does not know, in float16 or on another device, or with
  /// inputs that have gradients. In bfloat16 (precision.h) the plan computes otherwise than
  /// autograd.
  void set_planned(bool on);
  /// The first layer because of which this graph is never planned: "batch_norm2d \"norm\""; "" when
  /// there is none.
  std::string why_not_planned() const;

  /// A module of its own with equal parameters and buffers.
  std::shared_ptr<torch::nn::Module> clone(
      const std::optional<torch::Device>& device = std::nullopt) const override;

 private:
  void adapt(std::shared_ptr<torch::nn::Module> base);
  void lay_out_for(torch::Device device);
  std::vector<at::Tensor> computed(at::ArrayRef<at::Tensor> inputs);

  Graph graph_;
  std::vector<Lora> loras_;
  std::vector<at::Tensor*> read_;  ///< of each adapter: what its layer reads
  std::vector<detail::GraphStep> steps_;
  std::shared_ptr<const detail::GraphPlan> plan_;
  bool planned_ = true;
};

std::shared_ptr<GraphModule> make_module(const Graph& graph, const std::vector<Lora>& loras = {});

}  // namespace tutti::nn
