#include "tutti/nn/value_types.h"

#include <fmt/format.h>

#include <algorithm>

#include "tutti/nn/detail/site.h"
#include "tutti/nn/detail/value_types.h"

namespace tutti::nn {
namespace detail {
namespace {

template <class... Kinds>
bool is_any_of(const Op& op) {
  return (std::holds_alternative<Kinds>(op) || ...);
}

/// Gives elements of its inputs.
bool moves_elements(const Op& op) {
  return is_any_of<op::Flatten, op::Concat, op::RepeatChannels, op::ToSequence, op::FirstOfSequence,
                   op::Reshape, op::Permute, op::Slice, op::Relu, op::GlobalMaxPool1d, op::Maximum,
                   op::Minimum>(op);
}

/// As LibTorch promotes floating ones.
DType promoted_type(DType a, DType b, const Site& site) {
  if (a == b) return a;
  if (is_floating(a) != is_floating(b)) return is_floating(a) ? a : b;
  if (!is_floating(a))
    site.fail(fmt::format("got values of {} and {}, expected one dtype", name_of(a), name_of(b)));
  return a == DType::float64 || b == DType::float64 ? DType::float64 : DType::float32;
}

}  // namespace

DType value_type(const Op& op, const std::vector<DType>& inputs, std::string_view name) {
  if (const auto* const input = std::get_if<op::Input>(&op)) return input->dtype;
  if (const auto* const lambda = std::get_if<op::Lambda>(&op))
    return lambda->function ? dtype_of(*lambda->function) : DType::float32;
  if (is_any_of<op::Embedding>(op)) return DType::float32;
  const std::vector<Shape> no_shapes;
  const Site site{op, no_shapes, name};
  if (moves_elements(op) || is_any_of<op::Add, op::Subtract, op::Multiply>(op)) {
    DType all = inputs[0];
    for (const DType one : inputs) all = promoted_type(all, one, site);
    return all;
  }
  if (!is_floating(inputs[0]))
    site.fail(
        fmt::format("got values of {}, expected floating ones: inputs of float32, or what "
                    "embedding() makes of numbers of tokens",
                    name_of(inputs[0])));
  return is_any_of<op::Lstm, op::Gru>(op) ? DType::float32 : inputs[0];
}

}  // namespace detail

std::vector<DType> value_types(const Graph& graph) {
  std::vector<DType> types;
  for (const Node& node : graph.nodes()) {
    std::vector<DType> inputs;
    for (const int input : node.inputs) inputs.push_back(types[static_cast<size_t>(input)]);
    types.push_back(detail::value_type(node.op, inputs, node.name));
  }
  return types;
}

}  // namespace tutti::nn
