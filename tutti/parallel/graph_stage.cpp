#include "tutti/parallel/graph_stage.h"

#include <ATen/CPUGeneratorImpl.h>
#include <fmt/format.h>
#include <torch/nn/modules/embedding.h>

#include <algorithm>
#include <utility>

#include "tutti/base/error.h"
#include "tutti/nn/attention.h"
#include "tutti/nn/dense.h"
#include "tutti/nn/detail/graph_state.h"
#include "tutti/nn/detail/graph_step.h"
#include "tutti/parallel/detail/cut.h"
#include "tutti/parallel/detail/memory_order.h"
#include "tutti/parallel/detail/stage_parts.h"

namespace tutti::parallel {
namespace {

using nn::detail::GraphStep;
using nn::detail::LayerState;

at::Tensor parameter_of(const torch::nn::Module& module, const std::string& name) {
  const auto parameters = module.named_parameters();
  const auto* found = parameters.find(name);
  return found == nullptr ? at::Tensor() : *found;
}

struct Weights {
  at::Tensor weight, bias;
};
/// Of linear and embedding, and of a head tied to that.
Weights weights_of(const GraphStep& step) {
  if (!std::holds_alternative<nn::op::Linear>(step.op))
    return {static_cast<torch::nn::EmbeddingImpl*>(step.module)->weight, {}};
  const auto& linear = static_cast<const nn::LinearImpl&>(*step.module);
  return {linear.weight, linear.bias};
}

/// The bias of rows is added after the sum, and the ReLU comes after it.
void relu_after_rows(std::vector<GraphStep>& steps, const std::vector<NodeRole>& roles) {
  for (GraphStep& step : steps) {
    if (!step.passes) continue;
    const auto input = static_cast<size_t>(step.inputs[0].node);
    if (roles[input].role != Role::rows) continue;
    steps[input].activation = nn::Activation::none;
    step.passes = step.in_place = false;
  }
}

void require_stage(const nn::Graph& graph, const std::vector<StageRange>& stages, size_t stage,
                   const std::vector<NodeRole>& roles) {
  detail::require_ranges(graph, stages);
  if (stage >= stages.size())
    throw UsageError(
        fmt::format("stages: there is no stage {} of {}", static_cast<int>(stage), stages.size()));
  for (const StageRange& one : stages)
    if (const std::string why = why_no_cut(graph, roles, one.begin); !why.empty())
      throw UsageError("stages: " + why);
}

}  // namespace

/// A value of the graph: whole, or this rank's blocks, or both for an output that others read.
struct GraphStage::Held {
  at::Tensor whole{};
  Blocks blocks{};
};

GraphStage::GraphStage(nn::Graph graph, std::vector<StageRange> stages, int stage,
                       TensorGroup group, const Plan& plan)
    : torch::nn::Module("GraphStage"),
      graph_(std::move(graph)),
      stages_(std::move(stages)),
      stage_(static_cast<size_t>(stage)),
      group_(std::move(group)),
      roles_(roles_of(graph_, plan, group_.blocks())) {
  require_stage(graph_, stages_, stage_, roles_);
  stages_by_layer_ = detail::stages_by_layer(graph_, stages_);
  steps_ = nn::detail::steps_of(graph_, range().begin, range().end);
  relu_after_rows(steps_, roles_);
  input_ports_ = detail::values_across(graph_, range().begin);
  output_ports_ = detail::values_across(graph_, range().end);
  inputs_ = detail::borders_of(graph_, input_ports_);
  outputs_ = detail::borders_of(graph_, output_ports_);
  order_ = detail::channels_innermost(graph_);
  make_states();
}

GraphStage::~GraphStage() = default;

void GraphStage::make_states() {
  std::map<std::string, LayerState> made;
  for (size_t i = 0; i < steps_.size(); ++i) {
    const nn::Node& node = graph_.nodes()[i];
    const auto [state, fresh] = made.try_emplace(node.name);
    if (fresh) {
      LayerState drawn = nn::detail::draw_state(graph_, i);
      // Of a layer of another stage too, so that groups stand in the order of the whole module.
      if (drawn.module || drawn.parameter.defined()) nn::detail::register_groups(*this, node.name);
      const auto& users = stages_by_layer_.at(node.name);
      if (std::ranges::count(users, static_cast<int>(stage_)) > 0) {
        keep_state(node, drawn);
        state->second = std::move(drawn);
      }
    }
    steps_[i].module = state->second.module.get();
    steps_[i].parameter = state->second.parameter;
  }
}

void GraphStage::keep_state(const nn::Node& node, const LayerState& state) {
  const auto& users = stages_by_layer_.at(node.name);
  const bool owner = users.front() == static_cast<int>(stage_) || node.parameters.empty();
  if (state.module) cut_state(node, state, owner);
  if (owner)
    nn::detail::register_state(*this, node.name, state);
  else if (state.module)
    copies_.push_back(state.module);
  if (users.size() < 2) return;
  for (const nn::Parameter& parameter : node.parameters)
    ties_.push_back(
        {.name = nn::full_name(node, parameter),
         .parameter = state.module ? parameter_of(*state.module, parameter.name) : state.parameter,
         .owner = users[0],
         .reader = users[1]});
}

void GraphStage::cut_state(const nn::Node& node, const LayerState& state, bool owner) {
  const auto place = static_cast<size_t>(&node - graph_.nodes().data());
  const auto [role, stacked, from] = roles_[place];
  if (role == Role::whole) return;
  const bool features = role == Role::rows && std::holds_alternative<nn::op::Linear>(node.op);
  for (const std::string name : {"weight", "bias"}) {
    at::Tensor parameter = parameter_of(*state.module, name);
    if (!parameter.defined() || (features && name == "bias")) continue;
    const Piece piece =
        detail::piece_along(group_, node.name, parameter.sizes().vec(), features ? 1 : 0, stacked);
    parameter.set_data(piece_of(parameter.detach(), piece));
    if (owner) pieces_[node.name + "." + name] = piece;
  }
}

std::vector<at::Tensor> GraphStage::forward(at::TensorList inputs) {
  nn::detail::check_inputs(graph_, input_ports_, inputs);
  std::vector<Held> values(steps_.size());
  for (size_t i = 0; i < inputs.size(); ++i) {
    const auto node = static_cast<size_t>(input_ports_[i].node);
    values[node].whole = is_first() ? inputs[i] : detail::in_order(inputs[i], order_[node].value);
  }
  for (size_t i = range().begin; i < range().end; ++i)
    if (!steps_[i].inputs.empty()) values[i] = computed(i, values);
  std::vector<at::Tensor> outputs;
  for (const nn::Port& port : output_ports_) {
    const auto node = static_cast<size_t>(port.node);
    const bool goes_on = !is_last() && node >= range().begin;
    outputs.push_back(
        goes_on ? detail::with_gradient_in_order(values[node].whole, order_[node].gradient)
                : values[node].whole);
  }
  return outputs;
}

GraphStage::Held GraphStage::computed(size_t place, std::vector<Held>& values) const {
  const GraphStep& step = steps_[place];
  std::vector<Held> taken;
  for (const auto& [node, last_use] : step.inputs) {
    Held& value = values[static_cast<size_t>(node)];
    taken.push_back(last_use ? std::move(value) : value);
  }
  Held y;
  if (roles_[place].role != Role::whole) {
    y = computed_in_blocks(place, taken[0]);
  } else if (!roles_[place].blocks_of.empty()) {
    for (const at::Tensor& block : taken[0].blocks) y.blocks.push_back(step.run({block}));
  } else {
    GraphStep::Values whole;
    for (Held& value : taken) whole.push_back(std::move(value.whole));
    y.whole = step.run(whole);
  }
  const bool is_output = std::ranges::any_of(
      graph_.outputs(), [&](const nn::Port& port) { return port.node == static_cast<int>(place); });
  if (is_output && !y.whole.defined()) y.whole = whole_of(group_, y.blocks);
  return y;
}

GraphStage::Held GraphStage::computed_in_blocks(size_t place, const Held& x) const {
  const GraphStep& step = steps_[place];
  const auto& [role, stacked, blocks_of] = roles_[place];
  Held y;
  if (const auto* attention = std::get_if<nn::op::Attention>(&step.op)) {
    for (const at::Tensor& block : x.blocks)
      y.blocks.push_back(nn::attend(block, attention->heads / group_.blocks(), attention->causal));
    return y;
  }
  const auto [weight, bias] = weights_of(step);
  if (role == Role::columns) {
    const int64_t units = graph_.nodes()[place].shape.back();
    y.blocks = detail::column_products(group_, copy_to(group_, x.whole),
                                       {weight, bias, units, stacked}, step.activation);
  } else if (const auto* table = std::get_if<nn::op::Embedding>(&step.op)) {
    y.whole = detail::looked_up(group_, x.whole, weight, table->vocabulary);
  } else {
    const Blocks parts = x.blocks.empty() ? part_of(group_, x.whole) : x.blocks;
    const int64_t features = std::get<nn::op::Linear>(step.op).in_features;
    y.whole = detail::row_sum(group_, detail::row_products(group_, parts, weight, features), bias);
  }
  return y;
}

std::vector<std::shared_ptr<GraphStage>> make_stages(const nn::Graph& graph,
                                                     const std::vector<StageRange>& stages,
                                                     const std::vector<int>& own,
                                                     const TensorGroup& group, const Plan& plan) {
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  const at::Tensor before = generator.get_state();
  std::vector<std::shared_ptr<GraphStage>> modules;
  for (const int stage : own) {
    generator.set_state(before);
    modules.push_back(std::make_shared<GraphStage>(graph, stages, stage, group, plan));
  }
  return modules;
}

Stage stage_of(const std::shared_ptr<GraphStage>& module) {
  return {.module = module,
          .forward = [module](at::TensorList inputs) { return module->forward(inputs); },
          .inputs = module->is_first() ? std::vector<Border>() : module->inputs(),
          .outputs = module->is_last() ? std::vector<Border>() : module->outputs(),
          .ties = module->ties()};
}

}  // namespace tutti::parallel
