#include "tutti/nn/detail/graph_step.h"

#include <fmt/format.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>

#include "tutti/base/error.h"
#include "tutti/data/detail/row_error.h"
#include "tutti/nn/detail/operators.h"
#include "tutti/nn/recurrent.h"

namespace tutti::nn::detail {
namespace {

/// Who reads what each node gives; the graph's outputs read at its end.
struct Readers {
  explicit Readers(const Graph& graph)
      : last(graph.nodes().size(), -1), count(graph.nodes().size(), 0) {
    const auto& nodes = graph.nodes();
    const auto read = [&](int node, size_t by) {
      last[static_cast<size_t>(node)] = static_cast<int>(by);
      ++count[static_cast<size_t>(node)];
    };
    for (size_t i = 0; i < nodes.size(); ++i)
      for (const int input : nodes[i].inputs) read(input, i);
    for (const Port& output : graph.outputs()) read(output.node, nodes.size());
  }
  std::vector<int> last;
  std::vector<int> count;
};

/// True when nothing of the backward pass reads this layer's output, so that a ReLU may overwrite
/// it.
bool output_is_free(const Op& op) {
  return std::holds_alternative<op::Conv2d>(op) || std::holds_alternative<op::Linear>(op) ||
         std::holds_alternative<op::BatchNorm2d>(op) || std::holds_alternative<op::Add>(op);
}

/// Swaps ReLU and the max-pool after it: the same values and gradients, a quarter of the work.
void pool_before_relu(std::vector<GraphStep>& steps, const Readers& readers, size_t begin,
                      size_t end) {
  for (size_t i = begin; i < end; ++i) {
    if (!std::holds_alternative<op::Relu>(steps[i].op) || readers.count[i] != 1) continue;
    const auto reader = static_cast<size_t>(readers.last[i]);
    if (reader >= end || !std::holds_alternative<op::MaxPool2d>(steps[reader].op)) continue;
    GraphStep& pool = steps[reader];
    std::swap(steps[i].op, pool.op);
    steps[i].in_place = false;
    pool.in_place = true;  // now the ReLU, over the pool's output, which nobody else reads
  }
}

/// One kernel adds the bias and cuts off what is below zero.
void relu_with_dense(std::vector<GraphStep>& steps, const Readers& readers) {
  for (GraphStep& relu : steps) {
    if (!std::holds_alternative<op::Relu>(relu.op)) continue;
    const auto input = static_cast<size_t>(relu.inputs[0].node);
    if (!std::holds_alternative<op::Linear>(steps[input].op) || readers.count[input] != 1) continue;
    steps[input].activation = Activation::relu;
    relu.passes = true;
  }
}

struct ContiguousGradient : torch::autograd::Function<ContiguousGradient> {
  static at::Tensor forward(torch::autograd::AutogradContext*, const at::Tensor& x) {
    return x.view_as(x);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                 const torch::autograd::variable_list& above) {
    return {above[0].contiguous()};
  }
};

// With one channel both orders are the same memory; only the strides say which is meant.
at::Tensor one_channel_innermost(const at::Tensor& x) {
  return x.as_strided(x.sizes(), {x.size(2) * x.size(3), 1, x.size(3), 1});
}

struct OneChannelInnermost : torch::autograd::Function<OneChannelInnermost> {
  static at::Tensor forward(torch::autograd::AutogradContext*, const at::Tensor& x) {
    return one_channel_innermost(x);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                 const torch::autograd::variable_list& above) {
    return {above[0]};
  }
};

}  // namespace

std::vector<GraphStep> steps_of(const Graph& graph, size_t begin, size_t end) {
  const auto& nodes = graph.nodes();
  const Readers readers(graph);
  std::vector<GraphStep> steps;
  for (size_t i = 0; i < nodes.size(); ++i) {
    const nn::Node& node = nodes[i];
    GraphStep step{.op = node.op, .name = node.name};
    for (auto input = node.inputs.begin(); input != node.inputs.end(); ++input) {
      // add(x, x) reads one value twice: only the last read may let go of it.
      const bool again = std::find(input + 1, node.inputs.end(), *input) != node.inputs.end();
      const bool last = readers.last[static_cast<size_t>(*input)] == static_cast<int>(i);
      step.inputs.push_back({*input, last && !again});
    }
    if (std::holds_alternative<op::Relu>(node.op)) {
      const auto input = static_cast<size_t>(node.inputs[0]);
      step.in_place = input >= begin && readers.count[input] == 1 &&
                      output_is_free(nodes[input].op) &&
                      // A Linear on more than one dimension returns a view.
                      nodes[input].shape.size() != 2;
    }
    steps.push_back(std::move(step));
  }
  pool_before_relu(steps, readers, begin, end);
  relu_with_dense(steps, readers);
  return steps;
}

void check_inputs(const Graph& graph, const std::vector<Port>& ports,
                  at::ArrayRef<at::Tensor> inputs) {
  if (inputs.size() != ports.size()) {
    throw UsageError(
        fmt::format("nn::Graph: got {} inputs, expected {}", inputs.size(), ports.size()));
  }
  for (size_t i = 0; i < ports.size(); ++i) {
    const Shape& wanted = graph.shape_of(ports[i]);
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

void require_tokens(const std::string& what, const at::Tensor& tokens, int64_t vocabulary) {
  const at::Tensor bad = at::nonzero(at::logical_or(tokens.lt(0), tokens.ge(vocabulary)).flatten());
  if (bad.numel() == 0) return;
  const auto place = bad.flatten()[0].item<int64_t>();
  const int64_t in_a_row = tokens.numel() / tokens.size(0);
  throw tutti::detail::RowError(
      what, place / in_a_row,
      fmt::format("token {} (position {}), expected 0 to {}",
                  tokens.flatten()[place].item<int64_t>(), place % in_a_row, vocabulary - 1));
}

void require_steps_of_inputs(const Graph& graph, at::ArrayRef<at::Tensor> inputs) {
  for (const nn::Node& node : graph.nodes()) {
    const bool recurrent =
        std::holds_alternative<op::Lstm>(node.op) || std::holds_alternative<op::Gru>(node.op);
    if (!recurrent || node.inputs.size() != 2) continue;
    const int64_t length = graph.nodes()[static_cast<size_t>(node.inputs[0])].shape[0];
    for (size_t i = 0; i < std::min(inputs.size(), graph.inputs().size()); ++i) {
      const Port& port = graph.inputs()[i];
      const bool fits = inputs[i].dim() == 2 && inputs[i].size(1) == graph.shape_of(port)[0];
      if (port.node == node.inputs[1] && fits && inputs[i].is_cpu())
        require_steps(inputs[i], length, fmt::format("{} \"{}\"", kind_of(node.op), node.name));
    }
  }
}

at::Tensor channels_last(const at::Tensor& x) {
  if (!x.is_cpu()) return x;
  if (x.size(1) == 1 && x.is_contiguous())
    return x.requires_grad() ? OneChannelInnermost::apply(x) : one_channel_innermost(x);
  return x.contiguous(at::MemoryFormat::ChannelsLast);
}

at::Tensor with_contiguous_gradient(const at::Tensor& x) {
  return x.requires_grad() ? ContiguousGradient::apply(x) : x;
}

at::Tensor GraphStep::run(const Values& values) const {
  return passes ? values[0] : operator_of(op).run(op, {*this, values});
}

}  // namespace tutti::nn::detail
