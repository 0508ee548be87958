/// A node of a graph as nodes of ONNX: what an operator's row has at hand. Not for users.
/// Thread rule: that of the program.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "tutti/nn/graph.h"
#include "tutti/nn/to_onnx.h"

namespace tutti::nn::detail {

/// Images have channels first; all is computed as in evaluation.
struct NodeToOnnx {
  onnx::Program& program;
  const nn::Node& node;
  const std::vector<onnx::Value>& all;
  const std::vector<Shape>& shapes;  ///< of samples of `all`
  const OnnxState& from;

  const onnx::Value& x() const { return all.front(); }
  const Shape& shape() const { return shapes.front(); }
  /// A parameter or buffer of the layer.
  onnx::Value state(std::string_view name) const;

  onnx::Value add(std::string_view op, const std::vector<onnx::Value>& inputs,
                  std::vector<onnx::Attribute> attributes = {}) const {
    return program.node(op, inputs, std::move(attributes));
  }
  /// a op b, by numpy's rules of broadcasting.
  onnx::Value add(std::string_view op, const onnx::Value& a, float number) const {
    return add(op, {a, program.constant(number)});
  }
  /// `sides`: of the result, the batch first; 0: as in `a` at that place.
  onnx::Value reshape(const onnx::Value& a, const std::vector<int64_t>& sides) const {
    return add("Reshape", {a, program.constant(sides)});
  }
  onnx::Value transpose(const onnx::Value& a, std::vector<int64_t> order) const {
    return add("Transpose", {a}, {{"perm", std::move(order)}});
  }
  /// a W' + b over the last dimension of a, whose samples have so many dimensions.
  onnx::Value dense(const onnx::Value& a, size_t dimensions, const onnx::Value& weight,
                    const std::optional<onnx::Value>& bias = {}) const;
};

/// What is for attention between its dense layers: [batch, length, 3 features] to [batch, length,
/// features].
onnx::Value attention(const NodeToOnnx& to, const onnx::Value& a, int64_t length, int64_t features,
                      int64_t heads, bool causal);

/// Means of a grid of cells, as LibTorch lays it over images of this height and width.
onnx::Value mean_of_cells(const NodeToOnnx& to, Size2d image, Size2d cells);

onnx::Value gelu(const NodeToOnnx& to, bool by_tanh);

}  // namespace tutti::nn::detail
