#include "tutti/nn/graph_module.h"

#include <fmt/format.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>

#include <map>
#include <optional>
#include <utility>

#include "tutti/base/error.h"
#include "tutti/nn/dropout.h"

namespace tutti::nn {

namespace {

using torch::nn::Module;

/// The torch module of a layer, or null for layers without state. `place` numbers dropout layers.
struct Maker {
  int place;

  std::shared_ptr<Module> operator()(const op::Conv2d& op) const {
    return std::make_shared<torch::nn::Conv2dImpl>(
        torch::nn::Conv2dOptions(op.in_channels, op.out_channels, op.kernel)
            .stride(op.stride)
            .padding(op.padding)
            .groups(op.groups)
            .bias(op.bias));
  }
  std::shared_ptr<Module> operator()(const op::Linear& op) const {
    return std::make_shared<torch::nn::LinearImpl>(
        torch::nn::LinearOptions(op.in_features, op.units).bias(op.bias));
  }
  std::shared_ptr<Module> operator()(const op::BatchNorm2d& op) const {
    return std::make_shared<torch::nn::BatchNorm2dImpl>(
        torch::nn::BatchNormOptions(op.channels).eps(op.epsilon).momentum(op.momentum));
  }
  std::shared_ptr<Module> operator()(const op::Dropout& op) const {
    return std::make_shared<DropoutImpl>(DropoutOptions{op.probability, place});
  }
  template <class Stateless>
  std::shared_ptr<Module> operator()(const Stateless&) const {
    return nullptr;
  }
};

/// Registers `module` under a dotted name, making the groups on the way.
void register_nested(Module& root, const std::string& name, std::shared_ptr<Module> module) {
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
  group->register_module(name.substr(begin), std::move(module));
}

/// True when nothing of the backward pass reads this layer's output, so that a ReLU may overwrite
/// it.
bool output_is_free(const Op& op) {
  return std::holds_alternative<op::Conv2d>(op) || std::holds_alternative<op::Linear>(op) ||
         std::holds_alternative<op::BatchNorm2d>(op) || std::holds_alternative<op::Add>(op);
}

/// The same values with channels innermost, where LibTorch's CPU convolutions and pools are fastest
/// (docs/design/graph.md). What comes after follows its input's layout.
at::Tensor channels_last(const at::Tensor& x) {
  if (!x.is_cpu()) return x;
  if (x.size(1) == 1 && x.is_contiguous() && !x.requires_grad()) {
    // With one channel both layouts are the same memory; only the strides say which is meant.
    return x.as_strided(x.sizes(), {x.size(2) * x.size(3), 1, x.size(3), 1});
  }
  return x.contiguous(at::MemoryFormat::ChannelsLast);
}

}  // namespace

/// One node, ready to run.
struct GraphModule::Step {
  Op op;
  Module* module = nullptr;  ///< owned by the module tree
  int inputs[2] = {-1, -1};
  bool last_use[2] = {false, false};  ///< the input is not needed afterwards: let go of it
  bool in_place = false;              ///< relu over its input's memory

  at::Tensor run(at::Tensor x, at::Tensor y) const {
    return std::visit([&](const auto& known) { return apply(known, std::move(x), y); }, op);
  }

 private:
  at::Tensor apply(const op::Input&, at::Tensor x, const at::Tensor&) const { return x; }
  at::Tensor apply(const op::Conv2d&, at::Tensor x, const at::Tensor&) const {
    return static_cast<torch::nn::Conv2dImpl*>(module)->forward(channels_last(x));
  }
  at::Tensor apply(const op::Linear&, at::Tensor x, const at::Tensor&) const {
    return static_cast<torch::nn::LinearImpl*>(module)->forward(x);
  }
  at::Tensor apply(const op::MaxPool2d& op, at::Tensor x, const at::Tensor&) const {
    return torch::max_pool2d(x, op.kernel, op.stride, op.padding);
  }
  at::Tensor apply(const op::AvgPool2d& op, at::Tensor x, const at::Tensor&) const {
    return torch::avg_pool2d(x, op.kernel, op.stride);
  }
  at::Tensor apply(const op::BatchNorm2d&, at::Tensor x, const at::Tensor&) const {
    return static_cast<torch::nn::BatchNorm2dImpl*>(module)->forward(x);
  }
  at::Tensor apply(const op::Dropout&, at::Tensor x, const at::Tensor&) const {
    return static_cast<DropoutImpl*>(module)->forward(x);
  }
  at::Tensor apply(const op::RepeatChannels& op, at::Tensor x, const at::Tensor&) const {
    return x.expand({x.size(0), op.times, x.size(2), x.size(3)});
  }
  at::Tensor apply(const op::Relu&, at::Tensor x, const at::Tensor&) const {
    return in_place ? torch::relu_(x) : torch::relu(x);
  }
  at::Tensor apply(const op::GlobalAvgPool2d&, at::Tensor x, const at::Tensor&) const {
    return torch::adaptive_avg_pool2d(x, {1, 1}).flatten(1);
  }
  at::Tensor apply(const op::Flatten&, at::Tensor x, const at::Tensor&) const {
    return x.flatten(1);
  }
  at::Tensor apply(const op::Softmax&, at::Tensor x, const at::Tensor&) const {
    return torch::softmax(x, -1);
  }
  at::Tensor apply(const op::Add&, at::Tensor x, const at::Tensor& y) const { return x + y; }
};

GraphModule::GraphModule(Graph graph) : torch::nn::Module("Graph"), graph_(std::move(graph)) {
  const auto& nodes = graph_.nodes();
  std::map<std::string, Module*> made;
  std::vector<int> last_reader(nodes.size(), -1);
  std::vector<int> readers(nodes.size(), 0);
  for (size_t i = 0; i < nodes.size(); ++i) {
    for (int input : nodes[i].inputs) {
      last_reader[input] = static_cast<int>(i);
      ++readers[input];
    }
  }
  for (size_t i = 0; i < nodes.size(); ++i) {
    const Node& node = nodes[i];
    Step step;
    step.op = node.op;
    if (auto known = made.find(node.name); known != made.end()) {
      step.module = known->second;
    } else if (auto module = std::visit(Maker{static_cast<int>(i)}, node.op)) {
      step.module = module.get();
      made.emplace(node.name, module.get());
      register_nested(*this, node.name, std::move(module));
    }
    for (size_t k = 0; k < node.inputs.size(); ++k) {
      const int input = node.inputs[k];
      step.inputs[k] = input;
      // add(x, x) reads one value twice: only the second read may let go of it.
      const bool read_again = k == 0 && node.inputs.size() == 2 && node.inputs[1] == input;
      step.last_use[k] = last_reader[input] == static_cast<int>(i) && !read_again;
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
}

void GraphModule::pool_before_relu(const std::vector<int>& readers,
                                   const std::vector<int>& last_reader) {
  for (size_t i = 0; i < steps_.size(); ++i) {
    if (!std::holds_alternative<op::Relu>(steps_[i].op) || readers[i] != 1) continue;
    Step& pool = steps_[static_cast<size_t>(last_reader[i])];
    if (!std::holds_alternative<op::MaxPool2d>(pool.op)) continue;
    std::swap(steps_[i].op, pool.op);
    steps_[i].in_place = false;
    pool.in_place = true;  // now the ReLU, over the pool's output, which nobody else reads
  }
}

GraphModule::~GraphModule() = default;

void GraphModule::check_input(const at::Tensor& x) const {
  const Shape& wanted = graph_.input_shape();
  const auto got = x.sizes();
  const bool fits =
      got.size() == wanted.size() + 1 && std::equal(wanted.begin(), wanted.end(), got.begin() + 1);
  if (!fits) {
    throw UsageError(fmt::format("nn::Graph: got an input of shape {}, expected [batch, {}",
                                 to_string(Shape(got.begin(), got.end())),
                                 to_string(wanted).substr(1)));
  }
}

at::Tensor GraphModule::forward(const at::Tensor& x) {
  check_input(x);
  std::vector<at::Tensor> values(steps_.size());
  values[0] = x;
  for (size_t i = 1; i < steps_.size(); ++i) {
    const Step& step = steps_[i];
    const auto take = [&](int k) {
      if (step.inputs[k] < 0) return at::Tensor();
      at::Tensor& value = values[static_cast<size_t>(step.inputs[k])];
      return step.last_use[k] ? std::move(value) : value;
    };
    at::Tensor first = take(0);
    values[i] = step.run(std::move(first), take(1));
  }
  return std::move(values.back());
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
  return copy;
}

std::shared_ptr<GraphModule> make_module(const Graph& graph) {
  return std::make_shared<GraphModule>(graph);
}

}  // namespace tutti::nn
