#include "tutti/plan/arithmetic.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <variant>

namespace tutti::plan {
namespace {

namespace op = nn::op;

int64_t elements_of(const nn::Shape& shape) {
  return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies());
}

/// Queries with keys, and what they give with values: each place with each other one.
int64_t of_attention(int64_t length, int64_t features) { return 2 * length * length * features; }

/// The multiply-adds of a layer that takes `in` and gives `out`.
struct Count {
  const nn::Shape& in;
  int64_t out;

  int64_t operator()(const op::Conv2d& conv) const {
    return out * (conv.in_channels / conv.groups) * conv.kernel.height * conv.kernel.width;
  }
  int64_t operator()(const op::Linear& linear) const { return out * linear.in_features; }
  int64_t operator()(const op::TiedLinear& linear) const { return out * linear.features; }
  int64_t operator()(const op::Attention& attention) const {
    return of_attention(in[0], attention.features);
  }
  int64_t operator()(const op::SelfAttention& attention) const {
    return of_attention(in[0], attention.features) +
           4 * in[0] * attention.features * attention.features;
  }
  int64_t operator()(const op::Conv1d& conv) const {
    return out * (conv.in_channels / conv.groups) * conv.kernel;
  }
  /// Each element of the input goes into a window of every output channel.
  int64_t operator()(const op::ConvTranspose1d& conv) const {
    return elements_of(in) * conv.out_channels * conv.kernel;
  }
  int64_t operator()(const op::ConvTranspose2d& conv) const {
    return elements_of(in) * conv.out_channels * conv.kernel.height * conv.kernel.width;
  }
  int64_t operator()(const op::Lstm& cell) const { return 4 * of_gate(cell); }
  int64_t operator()(const op::Gru& cell) const { return 3 * of_gate(cell); }
  /// Of all steps, layers and directions.
  template <class Cell>
  int64_t of_gate(const Cell& cell) const {
    const int64_t directions = cell.bidirectional ? 2 : 1;
    const int64_t later = (cell.layers - 1) * (directions * cell.units + cell.units);
    return in[0] * directions * cell.units * (cell.features + cell.units + later);
  }
  template <class Other>
  int64_t operator()(const Other&) const {
    return 0;
  }
};

}  // namespace

Arithmetic arithmetic_of(const nn::Graph& graph) {
  Arithmetic all{.parameters = graph.num_parameters()};
  const auto& nodes = graph.nodes();
  for (const nn::Node& node : nodes) {
    for (const nn::Parameter& parameter : node.parameters)
      all.largest_parameter = std::max(all.largest_parameter, elements_of(parameter.shape));
    if (node.inputs.empty()) continue;
    const int64_t out = elements_of(node.shape);
    const nn::Shape& in = nodes[static_cast<size_t>(node.inputs[0])].shape;
    all.multiply_adds += std::visit(Count{in, out}, node.op);
    all.values += out;
  }
  return all;
}

}  // namespace tutti::plan
