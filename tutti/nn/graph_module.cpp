#include "tutti/nn/graph_module.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <fmt/format.h>
#include <torch/nn/modules/embedding.h>
#include <torch/types.h>

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "tutti/base/error.h"
#include "tutti/nn/attention.h"
#include "tutti/nn/dense.h"
#include "tutti/nn/detail/graph_plan.h"
#include "tutti/nn/detail/graph_state.h"
#include "tutti/nn/detail/graph_step.h"

namespace tutti::nn {

using detail::GraphStep;
using detail::LayerState;

namespace {

/// The member by which a layer reads its matrix of this name.
at::Tensor* matrix_of(torch::nn::Module& layer, const std::string& name) {
  if (auto* const linear = dynamic_cast<LinearImpl*>(&layer)) return &linear->weight;
  if (auto* const table = dynamic_cast<torch::nn::EmbeddingImpl*>(&layer)) return &table->weight;
  if (auto* const attention = dynamic_cast<SelfAttentionImpl*>(&layer))
    return &attention->in_proj_weight();
  throw UsageError(fmt::format("lora: \"{}\" is of a {}, whose weights can have no adapters", name,
                               layer.name()));
}

/// Gives layers other matrices for one pass: sums stay no longer than autograd needs them.
class ReadsSums {
 public:
  ReadsSums(const std::vector<at::Tensor*>& read, const std::vector<Adapter>& adapters)
      : read_(read), adapters_(adapters) {
    for (size_t i = 0; i < read.size(); ++i) *read[i] = adapters[i].sum();
  }
  ~ReadsSums() {
    for (size_t i = 0; i < read_.size(); ++i) *read_[i] = adapters_[i].base;
  }

 private:
  const std::vector<at::Tensor*>& read_;
  const std::vector<Adapter>& adapters_;
};

// Without gradients, and with layers that write to nothing but what they make, autograd has nothing
// to note down: it need not look at each tensor. Functions of the user's may want it all the same.
bool calls_functions(const std::vector<GraphStep>& steps) {
  return std::ranges::any_of(
      steps, [](const GraphStep& step) { return std::holds_alternative<op::Lambda>(step.op); });
}

// Writes to what the caller has are counted by autograd alone: of one tensor, or of views that it
// made itself.
bool shares_memory(const at::Tensor& output, at::ArrayRef<at::Tensor> others) {
  return output.has_storage() && std::ranges::any_of(others, [&](const at::Tensor& other) {
           return other.has_storage() && output.is_alias_of(other);
         });
}

}  // namespace

GraphModule::GraphModule(Graph graph, const std::vector<Lora>& loras)
    : torch::nn::Module("Graph"),
      graph_(std::move(graph)),
      loras_(loras),
      steps_(detail::steps_of(graph_, 0, graph_.nodes().size())) {
  std::map<std::string, LayerState> made;
  const auto base = loras.empty() ? nullptr : std::make_shared<torch::nn::Module>("Base");
  for (size_t i = 0; i < steps_.size(); ++i) {
    const Node& node = graph_.nodes()[i];
    const auto [state, fresh] = made.try_emplace(node.name);
    if (fresh) {
      state->second = detail::draw_state(graph_, i);
      detail::register_state(base ? *base : *this, node.name, state->second);
    }
    steps_[i].module = state->second.module.get();
    steps_[i].parameter = state->second.parameter;
  }
  plan_ = std::make_shared<detail::GraphPlan>(graph_, steps_);
  if (base) adapt(base);
}

void GraphModule::adapt(std::shared_ptr<torch::nn::Module> base) {
  for (const auto& buffer : base->named_buffers()) {
    const auto [group, name] = detail::place_of(*this, buffer.key());
    group->register_buffer(name, buffer.value());
  }
  add_adapters(*this, std::move(base), lora_matrices(loras_, lora_candidates(graph_), "the graph"));
  for (const LoraMatrix& matrix : adapters()) {
    const auto [layer, name] = detail::place_of(*this->base(), matrix.name);
    read_.push_back(matrix_of(*layer, name));
  }
  train(is_training());
}

void GraphModule::train(bool on) {
  Module::train(on);
  if (!base()) return;
  base()->train(on);
  for (const auto& layer : base()->modules(/*include_self=*/false))
    if (layer->named_buffers(/*recurse=*/false).contains("running_mean")) layer->eval();
}

GraphModule::~GraphModule() = default;

void GraphModule::to(torch::Device device, bool non_blocking) {
  Module::to(device, non_blocking);
  if (base()) base()->to(device, non_blocking);
  lay_out_for(device);
}
void GraphModule::to(torch::Device device, torch::Dtype dtype, bool non_blocking) {
  Module::to(device, dtype, non_blocking);
  if (base()) base()->to(device, dtype, non_blocking);
  lay_out_for(device);
}
void GraphModule::to(torch::Dtype dtype, bool non_blocking) {
  Module::to(dtype, non_blocking);
  if (base()) base()->to(dtype, non_blocking);
}

void GraphModule::lay_out_for(torch::Device device) {
  constexpr int64_t kDimsOfConvolution = 4;
  const auto format =
      device.is_cuda() ? at::MemoryFormat::ChannelsLast : at::MemoryFormat::Contiguous;
  for (at::Tensor& parameter : (base() ? *base() : *this).parameters())
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
  if (base()) {
    const ReadsSums reads(read_, parts());
    return computed(inputs);
  }
  if (planned_ && at::GradMode::is_enabled() && plan_->takes(inputs)) return plan_->run(inputs);
  return computed(inputs);
}

std::vector<at::Tensor> GraphModule::computed(at::ArrayRef<at::Tensor> inputs) {
  std::optional<at::AutoDispatchBelowADInplaceOrView> below;
  if (!at::GradMode::is_enabled() && !is_training() && !calls_functions(steps_)) below.emplace();
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
    at::Tensor value = values[static_cast<size_t>(output.node)];
    const auto is_it = [&](const at::Tensor& other) { return other.is_same(value); };
    if (below && (shares_memory(value, inputs) ||
                  (std::ranges::none_of(outputs, is_it) && shares_memory(value, outputs))))
      value = value.clone();
    outputs.push_back(std::move(value));
  }
  return outputs;
}

std::shared_ptr<torch::nn::Module> GraphModule::clone(
    const std::optional<torch::Device>& device) const {
  auto copy = make_module(graph_, loras_);
  if (device) copy->to(*device);
  torch::NoGradGuard no_grad;
  auto to = copy->named_parameters();
  for (const auto& from : named_parameters()) {
    to[from.key()].copy_(from.value());
    to[from.key()].set_requires_grad(from.value().requires_grad());
  }
  copy->copy_base_of(*this);
  auto buffers = copy->named_buffers();
  for (const auto& from : named_buffers()) buffers[from.key()].copy_(from.value());
  copy->train(is_training());
  copy->set_planned(planned_);
  return copy;
}

std::shared_ptr<GraphModule> make_module(const Graph& graph, const std::vector<Lora>& loras) {
  return std::make_shared<GraphModule>(graph, loras);
}

}  // namespace tutti::nn
