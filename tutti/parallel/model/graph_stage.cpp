#include "tutti/parallel/model/graph_stage.h"

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
#include "tutti/parallel/model/detail/stage_parts.h"
#include "tutti/parallel/stages/detail/layer_spans.h"
#include "tutti/parallel/tensor/detail/cut.h"
#include "tutti/parallel/tensor/detail/memory_order.h"

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

/// Layers that are computed one behind the other.
struct GraphStage::Walk {
  StageRange range{};
  std::vector<GraphStep> steps{};  // one a node of the graph; those of the range have their state
  std::vector<nn::Port> inputs{}, outputs{};
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
  whole_ = std::make_unique<Walk>(walk(range()));
  inputs_ = detail::borders_of(graph_, whole_->inputs);
  outputs_ = detail::borders_of(graph_, whole_->outputs);
  order_ = detail::channels_innermost(graph_);
  make_states();
}

GraphStage::~GraphStage() = default;

GraphStage::Walk GraphStage::walk(StageRange range) const {
  Walk made{.range = range,
            .steps = nn::detail::steps_of(graph_, range.begin, range.end),
            .inputs = detail::values_across(graph_, range.begin),
            .outputs = detail::values_across(graph_, range.end)};
  relu_after_rows(made.steps, roles_);
  return made;
}

void GraphStage::make_states() {
  std::map<std::string, LayerState> made;
  for (size_t i = 0; i < whole_->steps.size(); ++i) {
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
    whole_->steps[i].module = state->second.module.get();
    whole_->steps[i].parameter = state->second.parameter;
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

std::vector<at::Tensor> GraphStage::forward(at::TensorList inputs) { return run(*whole_, inputs); }

std::vector<at::Tensor> GraphStage::run(const Walk& walk, at::TensorList inputs) const {
  nn::detail::check_inputs(graph_, walk.inputs, inputs);
  std::vector<Held> values(walk.steps.size());
  const bool was_sent = !is_first() && walk.range.begin == range().begin;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const auto node = static_cast<size_t>(walk.inputs[i].node);
    values[node].whole = was_sent ? detail::in_order(inputs[i], order_[node].value) : inputs[i];
  }
  for (size_t i = walk.range.begin; i < walk.range.end; ++i)
    if (!walk.steps[i].inputs.empty()) values[i] = computed(walk, i, values);
  const bool is_sent = !is_last() && walk.range.end == range().end;
  std::vector<at::Tensor> outputs;
  for (const nn::Port& port : walk.outputs) {
    const auto node = static_cast<size_t>(port.node);
    outputs.push_back(
        is_sent && node >= range().begin
            ? detail::with_gradient_in_order(values[node].whole, order_[node].gradient)
            : values[node].whole);
  }
  return outputs;
}

std::vector<Span> GraphStage::spans(const Recompute& recompute) {
  std::vector<std::string> layers;
  for (const nn::Node& node : graph_.nodes())
    if (!std::holds_alternative<nn::op::Input>(node.op)) layers.push_back(node.name);
  detail::require_layers(layers, recompute);
  std::vector<detail::LayerUnit> units;
  for (size_t i = range().begin; i < range().end; ++i) {
    const GraphStep& step = whole_->steps[i];
    units.push_back({.name = graph_.nodes()[i].name,
                     .parameters = step.parameter.defined() ? step.parameter.unsafeGetTensorImpl()
                                                            : static_cast<const void*>(step.module),
                     .no_cut = why_no_cut(graph_, roles_, i)});
  }
  std::vector<Span> made;
  for (const auto& [begin, end, again] : detail::layer_spans(units, recompute)) {
    auto part = std::make_shared<Walk>(walk({range().begin + begin, range().begin + end}));
    Span span{.recompute = again};
    for (size_t i = part->range.begin; i < part->range.end; ++i) {
      part->steps[i].module = whole_->steps[i].module;
      part->steps[i].parameter = whole_->steps[i].parameter;
      if (part->steps[i].module != nullptr) span.layers.push_back(part->steps[i].module);
    }
    span.forward = [this, part](at::TensorList inputs) { return run(*part, inputs); };
    made.push_back(std::move(span));
  }
  return made;
}

GraphStage::Held GraphStage::computed(const Walk& walk, size_t place,
                                      std::vector<Held>& values) const {
  const GraphStep& step = walk.steps[place];
  std::vector<Held> taken;
  for (const auto& [node, last_use] : step.inputs) {
    Held& value = values[static_cast<size_t>(node)];
    taken.push_back(last_use ? std::move(value) : value);
  }
  Held y;
  if (roles_[place].role != Role::whole) {
    y = computed_in_blocks(step, place, taken[0]);
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

GraphStage::Held GraphStage::computed_in_blocks(const GraphStep& step, size_t place,
                                                const Held& x) const {
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

Stage stage_of(const std::shared_ptr<GraphStage>& module, const Recompute& recompute) {
  return {.module = module,
          .forward = [module](at::TensorList inputs) { return module->forward(inputs); },
          .inputs = module->is_first() ? std::vector<Border>() : module->inputs(),
          .outputs = module->is_last() ? std::vector<Border>() : module->outputs(),
          .ties = module->ties(),
          .spans = module->spans(recompute)};
}

}  // namespace tutti::parallel
