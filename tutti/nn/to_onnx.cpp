#include "tutti/nn/to_onnx.h"

#include <fmt/format.h>
#include <torch/types.h>

#include <cmath>
#include <limits>
#include <memory>
#include <numbers>
#include <utility>

#include "tutti/base/error.h"
#include "tutti/nn/detail/node_to_onnx.h"
#include "tutti/nn/detail/operator_facts.h"
#include "tutti/nn/graph_module.h"
#include "tutti/nn/value_types.h"
#include "tutti/sync/tensors.h"

namespace tutti::nn {
namespace detail {

onnx::Value NodeToOnnx::state(std::string_view name) const {
  for (const Parameter& parameter : node.parameters) {
    if (parameter.name != name) continue;
    const std::string full = full_name(node, parameter);
    const auto found = from.find(full);
    if (found == from.end())
      throw UsageError(fmt::format("onnx: parameter \"{}\" is missing", full));
    const Array& array = found->second;
    if (array.dtype() != DType::float32 || array.shape() != parameter.shape)
      throw UsageError(fmt::format("onnx: parameter \"{}\" is {}, expected float32 {}", full,
                                   array.to_string(), to_string(parameter.shape)));
    return program.weight(full, array);
  }
  throw UsageError(
      fmt::format("onnx: {} \"{}\" has no parameter \"{}\"", kind_of(node.op), node.name, name));
}

onnx::Value NodeToOnnx::dense(const onnx::Value& a, size_t dimensions, const onnx::Value& weight,
                              const std::optional<onnx::Value>& bias) const {
  if (dimensions == 1)
    return add("Gemm", bias ? std::vector{a, weight, *bias} : std::vector{a, weight},
               {{"transB", int64_t{1}}});
  const onnx::Value y = add("MatMul", {a, transpose(weight, {1, 0})});
  return bias ? add("Add", {y, *bias}) : y;
}

onnx::Value attention(const NodeToOnnx& to, const onnx::Value& a, int64_t length, int64_t features,
                      int64_t heads, bool causal) {
  const auto parts =
      to.program.nodes("Split", {a}, 3, {{"axis", int64_t{2}}, {"num_outputs", int64_t{3}}});
  const int64_t width = features / heads;
  const auto of_heads = [&](const onnx::Value& part, std::vector<int64_t> order) {
    return to.transpose(to.reshape(part, {0, length, heads, width}), std::move(order));
  };
  onnx::Value scores =
      to.add("MatMul", {of_heads(parts[0], {0, 2, 1, 3}), of_heads(parts[1], {0, 2, 3, 1})});
  scores = to.add("Mul", scores, static_cast<float>(1 / std::sqrt(static_cast<double>(width))));
  if (causal) {
    const Array unseen = Array::zeros(DType::float32, {length, length});
    for (int64_t place = 0; place < length; ++place)
      for (int64_t later = place + 1; later < length; ++later)
        unseen.as<float>()[static_cast<size_t>(place * length + later)] =
            -std::numeric_limits<float>::infinity();
    scores = to.add("Add", {scores, to.program.constant(unseen)});
  }
  const onnx::Value seen = to.add("Softmax", {scores}, {{"axis", int64_t{-1}}});
  const onnx::Value mixed = to.add("MatMul", {seen, of_heads(parts[2], {0, 2, 1, 3})});
  return to.reshape(to.transpose(mixed, {0, 2, 1, 3}), {0, length, features});
}

namespace {

// [cells, side]: each row a mean of the pixels of a cell.
Array means(int64_t side, int64_t cells) {
  Array weights = Array::zeros(DType::float32, {cells, side});
  for (int64_t cell = 0; cell < cells; ++cell) {
    const int64_t begin = cell * side / cells, end = ((cell + 1) * side + cells - 1) / cells;
    for (int64_t at = begin; at < end; ++at)
      weights.as<float>()[static_cast<size_t>(cell * side + at)] =
          1.0F / static_cast<float>(end - begin);
  }
  return weights;
}

}  // namespace

onnx::Value mean_of_cells(const NodeToOnnx& to, Size2d image, Size2d cells) {
  if (image.height % cells.height == 0 && image.width % cells.width == 0) {
    const std::vector<int64_t> tile{image.height / cells.height, image.width / cells.width};
    return to.add("AveragePool", {to.x()}, {{"kernel_shape", tile}, {"strides", tile}});
  }
  const onnx::Value rows = to.program.constant(means(image.height, cells.height));
  const onnx::Value columns = to.program.constant(means(image.width, cells.width));
  return to.add("MatMul", {to.add("MatMul", {rows, to.x()}), to.transpose(columns, {1, 0})});
}

onnx::Value gelu(const NodeToOnnx& to, bool by_tanh) {
  const onnx::Value& x = to.x();
  onnx::Value inside = to.add("Mul", x, static_cast<float>(1 / std::numbers::sqrt2));
  if (by_tanh) {
    const onnx::Value cube = to.add("Mul", {to.add("Mul", {x, x}), x});
    inside = to.add("Mul", to.add("Add", {x, to.add("Mul", cube, 0.044715F)}),
                    static_cast<float>(std::sqrt(2 / std::numbers::pi)));
  }
  const onnx::Value share = to.add("Add", to.add(by_tanh ? "Tanh" : "Erf", {inside}), 1.0F);
  return to.add("Mul", to.add("Mul", {x, share}), 0.5F);
}

namespace {

/// ONNX's operators of two take them of one dtype alone.
void require_equal_types(const Graph& graph) {
  const std::vector<DType> types = value_types(graph);
  for (const nn::Node& node : graph.nodes()) {
    const bool recurrent =
        std::holds_alternative<op::Lstm>(node.op) || std::holds_alternative<op::Gru>(node.op);
    for (const int input : node.inputs) {
      const DType first = types[static_cast<size_t>(node.inputs[0])];
      const DType other = types[static_cast<size_t>(input)];
      if (other == first || recurrent) continue;
      throw UsageError(fmt::format(
          "onnx: {} \"{}\" joins {} and {}, expected values of one dtype: give the graph such "
          "inputs",
          kind_of(node.op), node.name, name_of(first), name_of(other)));
    }
  }
}

}  // namespace
}  // namespace detail

OnnxState onnx_state_of(const GraphModule& module) {
  OnnxState state;
  const auto keep = [&](const std::string& name, const at::Tensor& tensor) {
    const auto plain = std::make_shared<at::Tensor>(tensor.detach().cpu().contiguous());
    const MemorySpan span = span_of(*plain);
    state.emplace(name, Array::view(span.data, span.dtype, plain->sizes().vec(), plain));
  };
  if (module.base())
    for (const auto& [name, merged] : module.merged_parameters()) keep(name, merged);
  else
    for (const auto& one : module.named_parameters()) keep(one.key(), one.value());
  for (const auto& buffer : module.named_buffers()) keep(buffer.key(), buffer.value());
  return state;
}

onnx::Type onnx_type(const Graph& graph, const Port& port) {
  const Node& node = graph.nodes()[static_cast<size_t>(port.node)];
  onnx::Type type{.dtype = value_types(graph)[static_cast<size_t>(port.node)],
                  .shape = {onnx::kBatch}};
  for (const int64_t side : node.shape) type.shape.emplace_back(side);
  return type;
}

std::vector<onnx::Value> add_to(onnx::Program& program, const Graph& graph, const OnnxState& state,
                                const std::vector<onnx::Value>& inputs) {
  const auto& nodes = graph.nodes();
  if (inputs.size() != graph.inputs().size())
    throw UsageError(fmt::format("onnx: got {} inputs, expected the graph's {}", inputs.size(),
                                 graph.inputs().size()));
  detail::require_equal_types(graph);
  std::vector<onnx::Value> values(nodes.size());
  for (size_t i = 0; i < inputs.size(); ++i)
    values[static_cast<size_t>(graph.inputs()[i].node)] = inputs[i];
  for (size_t i = 0; i < nodes.size(); ++i) {
    const Node& node = nodes[i];
    if (node.inputs.empty()) continue;
    std::vector<onnx::Value> all;
    std::vector<Shape> shapes;
    for (const int input : node.inputs) {
      all.push_back(values[static_cast<size_t>(input)]);
      shapes.push_back(nodes[static_cast<size_t>(input)].shape);
    }
    program.scope(node.name);
    values[i] = detail::facts_of(node.op).to_onnx(node.op, {program, node, all, shapes, state});
  }
  program.scope("");
  std::vector<onnx::Value> outputs;
  for (const Port& port : graph.outputs())
    outputs.push_back(values[static_cast<size_t>(port.node)]);
  return outputs;
}

onnx::Program to_onnx(const Graph& graph, const OnnxState& state) {
  onnx::Program program("graph");
  std::vector<onnx::Value> inputs;
  for (const Port& port : graph.inputs())
    inputs.push_back(program.input(port.name, onnx_type(graph, port)));
  for (const Port& port : graph.outputs()) program.reserve_output(port.name);
  const auto outputs = add_to(program, graph, state, inputs);
  for (size_t i = 0; i < outputs.size(); ++i)
    program.output(graph.outputs()[i].name, outputs[i], onnx_type(graph, graph.outputs()[i]));
  return program;
}

onnx::Program to_onnx(const GraphModule& module) {
  return to_onnx(module.graph(), onnx_state_of(module));
}

}  // namespace tutti::nn
