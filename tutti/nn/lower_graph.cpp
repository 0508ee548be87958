#include "tutti/nn/lower_graph.h"

#include <fmt/format.h>

#include <algorithm>

#include "tutti/base/error.h"
#include "tutti/nn/detail/layouts.h"
#include "tutti/nn/detail/lowering.h"
#include "tutti/nn/detail/operator_facts.h"

namespace tutti::nn {
namespace detail {

hlo::Shape NodeLowering::shape_with(int64_t dimension, int64_t size) const {
  hlo::Shape shape = x().shape();
  shape[static_cast<size_t>(dimension)] = size;
  return shape;
}

std::string NodeLowering::full_name_of(std::string_view state) const {
  return full_name(node, {.name = std::string(state), .shape = {}});
}

hlo::Value NodeLowering::dense(hlo::Value a, hlo::Value weight,
                               std::optional<hlo::Value> bias) const {
  const auto last = static_cast<int64_t>(a.shape().size()) - 1;
  const hlo::Value y =
      hlo::dot(product_type(a), product_type(weight),
               {.batch_a = {}, .batch_b = {}, .contract_a = {last}, .contract_b = {1}});
  return bias ? y + hlo::broadcast(*bias, y.shape(), {last}) : y;
}

hlo::Value drawn_mask(const NodeLowering& to, double probability) {
  const std::vector<int> all_of_graph = dropouts_of(to.graph);
  const auto row = std::ranges::find_if(all_of_graph, [&](int place) {
    return to.graph.nodes()[static_cast<size_t>(place)].name == to.node.name;
  });
  if (row == all_of_graph.end() || !to.from.dropout_keys || !to.from.first_row)
    throw UsageError(fmt::format("dropout \"{}\": no key to draw its mask by", to.node.name));
  const int64_t number = row - all_of_graph.begin();
  const hlo::Value key = hlo::slice(*to.from.dropout_keys, {number, 0}, {number + 1, 2});
  // Numbers are drawn in the order of LibTorch's elements.
  hlo::Shape drawn = to.node.shape;
  drawn.insert(drawn.begin(), to.size(0));
  const hlo::Value uniform = in_order(
      {uniform_rows(drawn, key, *to.from.first_row), hlo::ImageOrder::channels_first}, to.order);
  const hlo::Value kept = hlo::compare(uniform, hlo::Comparison::ge, probability);
  return hlo::convert(kept, DType::float32) * (1 / (1 - probability));
}

}  // namespace detail

std::vector<int> dropouts_of(const Graph& graph) {
  std::vector<int> found;
  const auto& nodes = graph.nodes();
  for (size_t i = 0; i < nodes.size(); ++i) {
    const bool again = std::ranges::any_of(
        found, [&](int place) { return nodes[static_cast<size_t>(place)].name == nodes[i].name; });
    if (std::holds_alternative<op::Dropout>(nodes[i].op) && !again)
      found.push_back(static_cast<int>(i));
  }
  return found;
}

LoweredGraph lower(const Graph& graph, const LoweringInputs& from) {
  using detail::Ordered;
  using enum hlo::ImageOrder;
  std::vector<std::optional<Ordered>> values(graph.nodes().size());
  for (size_t i = 0; i < graph.inputs().size(); ++i)
    values[static_cast<size_t>(graph.inputs()[i].node)] =
        Ordered{from.inputs.at(i), channels_first};
  LoweredGraph lowered;
  for (size_t i = 0; i < values.size(); ++i) {
    const Node& node = graph.nodes()[i];
    if (values[i]) continue;
    std::vector<Ordered> given;
    for (const int input : node.inputs) given.push_back(*values[static_cast<size_t>(input)]);
    given[0].value.program().comment(fmt::format("{}: {}", node.name, kind_of(node.op)));
    const hlo::ImageOrder order = detail::order_of(node.op, given);
    std::vector<hlo::Value> inputs;
    for (const Ordered& input : given) inputs.push_back(detail::in_order(input, order));
    constexpr size_t kDimensionsOfImage = 3;
    const hlo::Value value = detail::facts_of(node.op).lower(
        node.op, {graph, node, from, inputs, order, lowered.buffers});
    values[i] = Ordered{value, node.shape.size() == kDimensionsOfImage ? order : channels_first};
  }
  for (const Port& output : graph.outputs())
    lowered.outputs.push_back(
        detail::in_order(*values[static_cast<size_t>(output.node)], channels_first));
  return lowered;
}

}  // namespace tutti::nn
