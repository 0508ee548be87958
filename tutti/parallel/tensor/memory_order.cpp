#include "tutti/parallel/tensor/detail/memory_order.h"

#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>

namespace tutti::parallel::detail {
namespace {

namespace op = nn::op;

constexpr size_t kDimsOfImage = 3;  // of a sample

template <class... Kinds>
bool is_one_of(const nn::Node& node) {
  return (std::holds_alternative<Kinds>(node.op) || ...);
}

/// Channels innermost, value and gradient, whatever their input is.
bool has_own_order(const nn::Node& node) {
  const auto* const norm = std::get_if<op::BatchNorm2d>(&node.op);
  return is_one_of<op::Conv2d, op::ConvTranspose2d>(node) ||
         (norm != nullptr && !norm->synchronized);
}
/// These compute in the order of their first input, and give gradients in that order.
bool follows_input(const nn::Node& node) {
  return is_one_of<op::MaxPool2d, op::AvgPool2d, op::AdaptiveAvgPool2d, op::BatchNorm2d,
                   op::LeakyRelu, op::Maximum, op::Minimum>(node);
}
/// These too, but give the gradient in the order of the gradient that they get.
bool follows_both(const nn::Node& node) {
  return is_one_of<op::Relu, op::Gelu, op::Tanh, op::Dropout, op::Add, op::Concat, op::Upsample2d,
                   op::Sigmoid, op::Elu, op::Selu, op::Silu, op::HardSigmoid, op::HardSwish,
                   op::Softplus, op::Mish, op::Relu6, op::Subtract, op::Multiply>(node);
}

bool value_of(const nn::Node& node, const std::vector<ChannelsInnermost>& all) {
  const auto innermost = [&](int input) { return all[static_cast<size_t>(input)].value; };
  if (node.shape.size() != kDimsOfImage) return false;
  if (has_own_order(node)) return true;
  if (is_one_of<op::Concat>(node)) return std::ranges::all_of(node.inputs, innermost);
  return (follows_input(node) || follows_both(node)) && innermost(node.inputs[0]);
}

/// Of what `reader`, whose first input is in order `first`, gives back for an input.
bool gradient_by(const nn::Node& reader, bool first, bool gradient_of_reader) {
  if (has_own_order(reader) || is_one_of<op::ToSequence>(reader)) return true;
  if (follows_input(reader)) return first;
  return follows_both(reader) && gradient_of_reader;
}

struct GradientInOrder : torch::autograd::Function<GradientInOrder> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x,
                            bool channels_innermost) {
    context->saved_data["channels_innermost"] = channels_innermost;
    return x.view_as(x);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& above) {
    return {in_order(above[0], context->saved_data["channels_innermost"].toBool()), {}};
  }
};

bool is_image(const at::Tensor& x) {
  return x.defined() && x.is_cpu() && x.dim() == static_cast<int64_t>(kDimsOfImage) + 1;
}

}  // namespace

std::vector<ChannelsInnermost> channels_innermost(const nn::Graph& graph) {
  const auto& nodes = graph.nodes();
  std::vector<ChannelsInnermost> all(nodes.size());
  for (size_t i = 0; i < nodes.size(); ++i) all[i].value = value_of(nodes[i], all);
  // Backward from the last reader to the first; gradients are added in that order, and the first
  // decides.
  std::vector<bool> known(nodes.size(), false);
  for (const nn::Port& output : graph.outputs()) known[static_cast<size_t>(output.node)] = true;
  for (size_t i = nodes.size(); i-- > 0;)
    for (const int input : nodes[i].inputs) {
      const auto from = static_cast<size_t>(input);
      if (known[from]) continue;
      known[from] = true;
      const bool first = all[static_cast<size_t>(nodes[i].inputs[0])].value;
      all[from].gradient =
          nodes[from].shape.size() == kDimsOfImage && gradient_by(nodes[i], first, all[i].gradient);
    }
  return all;
}

at::Tensor in_order(const at::Tensor& x, bool channels_innermost) {
  if (!is_image(x)) return x;
  const at::Tensor y =
      at::empty(x.sizes(), x.options(),
                channels_innermost ? at::MemoryFormat::ChannelsLast : at::MemoryFormat::Contiguous);
  return x.strides() == y.strides() ? x : y.copy_(x);
}

at::Tensor with_gradient_in_order(const at::Tensor& x, bool channels_innermost) {
  return is_image(x) && x.requires_grad() ? GradientInOrder::apply(x, channels_innermost) : x;
}

}  // namespace tutti::parallel::detail
