#include "tutti/nn/graph_module.h"

#include <fmt/format.h>
#include <torch/types.h>

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "tutti/base/error.h"
#include "tutti/nn/detail/graph_plan.h"
#include "tutti/nn/detail/graph_state.h"
#include "tutti/nn/detail/graph_step.h"

namespace tutti::nn {

using detail::GraphStep;
using detail::LayerState;

GraphModule::GraphModule(Graph graph)
    : torch::nn::Module("Graph"),
      graph_(std::move(graph)),
      steps_(detail::steps_of(graph_, 0, graph_.nodes().size())) {
  std::map<std::string, LayerState> made;
  for (size_t i = 0; i < steps_.size(); ++i) {
    const Node& node = graph_.nodes()[i];
    const auto [state, fresh] = made.try_emplace(node.name);
    if (fresh) {
      state->second = detail::draw_state(graph_, i);
      detail::register_state(*this, node.name, state->second);
    }
    steps_[i].module = state->second.module.get();
    steps_[i].parameter = state->second.parameter;
  }
  plan_ = std::make_shared<detail::GraphPlan>(graph_, steps_);
}

GraphModule::~GraphModule() = default;

void GraphModule::to(torch::Device device, bool non_blocking) {
  constexpr int64_t kDimsOfConvolution = 4;
  Module::to(device, non_blocking);
  const auto format =
      device.is_cuda() ? at::MemoryFormat::ChannelsLast : at::MemoryFormat::Contiguous;
  for (at::Tensor& parameter : parameters())
    if (parameter.dim() == kDimsOfConvolution)
      parameter.set_data(parameter.detach().contiguous(format));
}

void GraphModule::set_planned(bool on) { planned_ = on; }

std::string GraphModule::why_not_planned() const { return plan_->unknown(); }

at::Tensor GraphModule::forward(const at::Tensor& x) {
  if (graph_.outputs().size() != 1) {
    throw UsageError(fmt::format("nn::Graph: forward() gives one output, this graph has {}: {}",
                                 graph_.outputs().size(), "use forward_all()"));
  }
  return std::move(forward_all(x).front());
}

std::vector<at::Tensor> GraphModule::forward_all(at::ArrayRef<at::Tensor> inputs) {
  detail::check_inputs(graph_, graph_.inputs(), inputs);
  if (planned_ && at::GradMode::is_enabled() && plan_->takes(inputs)) return plan_->run(inputs);
  std::vector<at::Tensor> values(steps_.size());
  for (size_t i = 0; i < inputs.size(); ++i) {
    values[static_cast<size_t>(graph_.inputs()[i].node)] = inputs[i];
  }
  GraphStep::Values taken;
  for (size_t i = 0; i < steps_.size(); ++i) {
    if (steps_[i].inputs.empty()) continue;
    for (const auto& [node, last_use] : steps_[i].inputs) {
      at::Tensor& value = values[static_cast<size_t>(node)];
      taken.push_back(last_use ? std::move(value) : value);
    }
    values[i] = steps_[i].run(taken);
    taken.clear();
  }
  std::vector<at::Tensor> outputs;
  for (const Port& output : graph_.outputs()) {
    outputs.push_back(values[static_cast<size_t>(output.node)]);
  }
  return outputs;
}

std::shared_ptr<torch::nn::Module> GraphModule::clone(
    const std::optional<torch::Device>& device) const {
  auto copy = make_module(graph_);
  if (device) copy->to(*device);
  torch::NoGradGuard no_grad;
  auto to = copy->named_parameters();
  for (const auto& from : named_parameters()) {
    to[from.key()].copy_(from.value());
    to[from.key()].set_requires_grad(from.value().requires_grad());
  }
  auto buffers = copy->named_buffers();
  for (const auto& from : named_buffers()) buffers[from.key()].copy_(from.value());
  copy->train(is_training());
  copy->set_planned(planned_);
  return copy;
}

std::shared_ptr<GraphModule> make_module(const Graph& graph) {
  return std::make_shared<GraphModule>(graph);
}

}  // namespace tutti::nn
