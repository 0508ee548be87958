#include "tutti/nn/graph_module.h"

#include <fmt/format.h>
#include <torch/nn/init.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/normalization.h>
#include <torch/types.h>

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "tutti/base/error.h"
#include "tutti/nn/attention.h"
#include "tutti/nn/dense.h"
#include "tutti/nn/detail/graph_plan.h"
#include "tutti/nn/detail/graph_step.h"
#include "tutti/nn/dropout.h"
#include "tutti/nn/sync_batch_norm.h"

namespace tutti::nn {

namespace {

using detail::GraphStep;
using torch::nn::Module;

/// The torch module of a layer, or null for layers without state. `place` numbers dropout layers.
struct Maker {
  int place;

  std::shared_ptr<Module> operator()(const op::Conv2d& op) const {
    return std::make_shared<torch::nn::Conv2dImpl>(
        torch::nn::Conv2dOptions(op.in_channels, op.out_channels,
                                 {op.kernel.height, op.kernel.width})
            .stride(op.stride)
            .padding({op.padding.height, op.padding.width})
            .groups(op.groups)
            .bias(op.bias));
  }
  std::shared_ptr<Module> operator()(const op::Linear& op) const {
    auto linear = std::make_shared<LinearImpl>(
        torch::nn::LinearOptions(op.in_features, op.units).bias(op.bias));
    if (op.initial_deviation > 0) {
      torch::nn::init::normal_(linear->weight, 0, op.initial_deviation);
      if (op.bias) torch::nn::init::zeros_(linear->bias);
    }
    return linear;
  }
  std::shared_ptr<Module> operator()(const op::Embedding& op) const { return embedding(op); }
  std::shared_ptr<Module> operator()(const op::TiedLinear& op) const { return embedding(op); }
  std::shared_ptr<Module> operator()(const op::BatchNorm2d& op) const {
    const auto options =
        torch::nn::BatchNormOptions(op.channels).eps(op.epsilon).momentum(op.momentum);
    if (op.synchronized) return std::make_shared<SyncBatchNormImpl>(options);
    return std::make_shared<torch::nn::BatchNorm2dImpl>(options);
  }
  std::shared_ptr<Module> operator()(const op::LayerNorm& op) const {
    return std::make_shared<torch::nn::LayerNormImpl>(
        torch::nn::LayerNormOptions({op.features}).eps(op.epsilon));
  }
  std::shared_ptr<Module> operator()(const op::SelfAttention& op) const {
    return std::make_shared<SelfAttentionImpl>(op.features, op.heads);
  }
  std::shared_ptr<Module> operator()(const op::Dropout& op) const {
    return std::make_shared<DropoutImpl>(DropoutOptions{op.probability, place});
  }
  template <class Stateless>
  std::shared_ptr<Module> operator()(const Stateless&) const {
    return nullptr;
  }

 private:
  // Of either, as the first that is applied makes it for both.
  template <class Op>
  static std::shared_ptr<Module> embedding(const Op& op) {
    return std::make_shared<torch::nn::EmbeddingImpl>(
        torch::nn::EmbeddingOptions(op.vocabulary, op.features)
            ._weight(torch::randn({op.vocabulary, op.features}) * op.initial_deviation));
  }
};

/// The initial value of a layer that is one parameter, or an undefined tensor for all others.
struct ParameterMaker {
  at::Tensor operator()(const op::PrependToken& op) const {
    return torch::zeros({1, 1, op.features});
  }
  at::Tensor operator()(const op::AddPosition& op) const {
    return torch::randn({1, op.length, op.features}) * 0.02;
  }
  template <class Other>
  at::Tensor operator()(const Other&) const {
    return {};
  }
};

/// The group of modules in which something with this dotted name lies, made on the way, and the
/// name there.
std::pair<Module*, std::string> place_of(Module& root, const std::string& name) {
  Module* group = &root;
  size_t begin = 0;
  for (size_t dot = name.find('.'); dot != std::string::npos; dot = name.find('.', begin)) {
    const std::string part = name.substr(begin, dot - begin);
    const std::shared_ptr<Module> child =
        group->named_children().contains(part)
            ? group->named_children()[part]
            : group->register_module(part, std::make_shared<Module>(part));
    group = child.get();
    begin = dot + 1;
  }
  return {group, name.substr(begin)};
}

/// True when nothing of the backward pass reads this layer's output, so that a ReLU may overwrite
/// it.
bool output_is_free(const Op& op) {
  return std::holds_alternative<op::Conv2d>(op) || std::holds_alternative<op::Linear>(op) ||
         std::holds_alternative<op::BatchNorm2d>(op) || std::holds_alternative<op::Add>(op);
}

}  // namespace

GraphModule::GraphModule(Graph graph) : torch::nn::Module("Graph"), graph_(std::move(graph)) {
  const auto& nodes = graph_.nodes();
  std::map<std::string, GraphStep> made;
  std::vector<int> last_reader(nodes.size(), -1);
  std::vector<int> readers(nodes.size(), 0);
  const auto read = [&](int node, size_t by) {
    last_reader[node] = static_cast<int>(by);
    ++readers[node];
  };
  for (size_t i = 0; i < nodes.size(); ++i) {
    for (int input : nodes[i].inputs) read(input, i);
  }
  for (const Port& output : graph_.outputs()) read(output.node, nodes.size());
  for (size_t i = 0; i < nodes.size(); ++i) {
    const Node& node = nodes[i];
    GraphStep step{.op = node.op};
    if (auto known = made.find(node.name); known != made.end()) {
      step.module = known->second.module;
      step.parameter = known->second.parameter;
    } else {
      make_state(static_cast<int>(i), step);
      made.emplace(node.name, step);
    }
    for (auto input = node.inputs.begin(); input != node.inputs.end(); ++input) {
      // add(x, x) reads one value twice: only the last read may let go of it.
      const bool again = std::find(input + 1, node.inputs.end(), *input) != node.inputs.end();
      step.inputs.push_back({*input, last_reader[*input] == static_cast<int>(i) && !again});
    }
    if (std::holds_alternative<op::Relu>(node.op)) {
      const int input = node.inputs[0];
      step.in_place = readers[input] == 1 && output_is_free(nodes[input].op) &&
                      // A Linear on more than one dimension returns a view.
                      nodes[input].shape.size() != 2;
    }
    steps_.push_back(std::move(step));
  }
  pool_before_relu(readers, last_reader);
  relu_with_dense(readers);
  plan_ = std::make_shared<detail::GraphPlan>(graph_, steps_);
}

void GraphModule::make_state(int place, GraphStep& step) {
  const std::string& name = graph_.nodes()[static_cast<size_t>(place)].name;
  if (auto module = std::visit(Maker{place}, step.op)) {
    step.module = module.get();
    const auto [group, last] = place_of(*this, name);
    group->register_module(last, std::move(module));
  } else if (auto value = std::visit(ParameterMaker{}, step.op); value.defined()) {
    const auto [group, last] = place_of(*this, name);
    step.parameter = group->register_parameter(last, std::move(value));
  }
}

void GraphModule::pool_before_relu(const std::vector<int>& readers,
                                   const std::vector<int>& last_reader) {
  for (size_t i = 0; i < steps_.size(); ++i) {
    if (!std::holds_alternative<op::Relu>(steps_[i].op) || readers[i] != 1) continue;
    const auto reader = static_cast<size_t>(last_reader[i]);
    if (reader == steps_.size() || !std::holds_alternative<op::MaxPool2d>(steps_[reader].op))
      continue;
    GraphStep& pool = steps_[reader];
    std::swap(steps_[i].op, pool.op);
    steps_[i].in_place = false;
    pool.in_place = true;  // now the ReLU, over the pool's output, which nobody else reads
  }
}

// One kernel adds the bias and cuts off what is below zero.
void GraphModule::relu_with_dense(const std::vector<int>& readers) {
  for (GraphStep& relu : steps_) {
    if (!std::holds_alternative<op::Relu>(relu.op)) continue;
    const auto input = static_cast<size_t>(relu.inputs[0].node);
    if (!std::holds_alternative<op::Linear>(steps_[input].op) || readers[input] != 1) continue;
    steps_[input].activation = Activation::relu;
    relu.passes = true;
  }
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

void GraphModule::check_inputs(at::ArrayRef<at::Tensor> inputs) const {
  const auto& ports = graph_.inputs();
  if (inputs.size() != ports.size()) {
    throw UsageError(
        fmt::format("nn::Graph: got {} inputs, expected {}", inputs.size(), ports.size()));
  }
  for (size_t i = 0; i < ports.size(); ++i) {
    const Shape& wanted = graph_.shape_of(ports[i]);
    const auto got = inputs[i].sizes();
    const bool fits = got.size() == wanted.size() + 1 &&
                      std::equal(wanted.begin(), wanted.end(), got.begin() + 1);
    if (!fits) {
      throw UsageError(fmt::format("nn::Graph: got an {} of shape {}, expected [batch, {}",
                                   ports.size() == 1 ? "input" : "input \"" + ports[i].name + '"',
                                   to_string(Shape(got.begin(), got.end())),
                                   to_string(wanted).substr(1)));
    }
  }
}

at::Tensor GraphModule::forward(const at::Tensor& x) {
  if (graph_.outputs().size() != 1) {
    throw UsageError(fmt::format("nn::Graph: forward() gives one output, this graph has {}: {}",
                                 graph_.outputs().size(), "use forward_all()"));
  }
  return std::move(forward_all(x).front());
}

std::vector<at::Tensor> GraphModule::forward_all(at::ArrayRef<at::Tensor> inputs) {
  check_inputs(inputs);
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
