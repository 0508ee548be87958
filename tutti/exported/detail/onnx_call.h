/// A node of a .pt2 graph on its way to ONNX: its arguments by name, and what it makes. Not for
/// users. Thread rule: that of the program.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "tutti/onnx/program.h"
#include "tutti/pt2/program.h"

namespace tutti::exported::detail {

/// Why a node cannot be said, though its operator can.
struct CannotSay {
  std::string why;
};

/// A size, or arithmetic of sizes: known, or int64 [1].
struct OnnxNumber {
  std::optional<int64_t> known;
  onnx::Value value;
};

/// What a value of the graph is.
using OnnxItem = std::variant<onnx::Value, OnnxNumber>;

struct OnnxWalk {
  onnx::Program& program;
  const pt2::Graph& graph;
  std::map<std::string, OnnxItem> items;
  std::map<std::string, int64_t> strides;  ///< of aten::arange from 0: from one to the next
  std::set<std::string> shared;            ///< values whose memory others have too
};

class OnnxCall {
 public:
  OnnxCall(OnnxWalk& walk, const pt2::Node& node) : walk_(walk), node_(node) {}

  // ---- arguments; `place` counts those without a name (Python's operators) ----
  const pt2::Argument* find(std::string_view name) const;  ///< null: left out, or None
  bool has(std::string_view name) const { return find(name) != nullptr; }
  onnx::Value tensor(std::string_view name = "self") const;
  std::vector<onnx::Value> tensors(std::string_view name) const;
  int64_t whole(std::string_view name, std::optional<int64_t> otherwise = {}) const;
  double real(std::string_view name, std::optional<double> otherwise = {}) const;
  bool truth(std::string_view name, bool otherwise) const;
  std::string text(std::string_view name, const char* otherwise) const;
  const std::string& name_of(std::string_view name) const;  ///< of a value of the graph
  std::vector<int64_t> wholes(std::string_view name,
                              std::optional<std::vector<int64_t>> otherwise = {}) const;
  /// A pair: of one number, both.
  std::vector<int64_t> pair(std::string_view name, std::vector<int64_t> otherwise) const;
  OnnxNumber number(const pt2::Argument& argument) const;
  /// int64 [n], of which some may be known when the program runs.
  onnx::Value sizes(std::string_view name) const;
  /// Of a tensor; sizes that are symbols are in it by their place.
  const pt2::TensorMeta& meta(std::string_view name = "self") const;
  int64_t rank(std::string_view name = "self") const { return std::ssize(meta(name).sizes); }
  /// From 0, of one that may count from the end.
  int64_t axis(std::string_view name, std::optional<int64_t> otherwise = {}) const;
  /// A size that must be known at export.
  int64_t side(int64_t axis, std::string_view name = "self") const;
  /// A tensor or number as an operand of arithmetic whose tensors are of `element`.
  onnx::Value operand(std::string_view name, pt2::Element element) const;
  pt2::Element result_element() const;

  // ---- what it makes ----
  onnx::Value add(std::string_view op, const std::vector<onnx::Value>& inputs,
                  std::vector<onnx::Attribute> attributes = {}) const {
    return walk_.program.node(op, inputs, std::move(attributes));
  }
  onnx::Value constant(const std::vector<int64_t>& numbers) const {
    return walk_.program.constant(numbers);
  }
  onnx::Value scalar(double number, pt2::Element element) const;
  onnx::Value cast(const onnx::Value& a, pt2::Element to) const;
  onnx::Value size_of(const onnx::Value& a, int64_t axis) const;  ///< int64 [1]
  onnx::Program& program() const { return walk_.program; }

  const pt2::Node& node() const { return node_; }
  OnnxWalk& walk() const { return walk_; }
  void give(onnx::Value value) const { give(0, std::move(value)); }
  void give(size_t output, onnx::Value value) const;
  void give_list(std::vector<onnx::Value> values) const;
  void give_number(OnnxNumber number) const;

 private:
  OnnxWalk& walk_;
  const pt2::Node& node_;
};

DType dtype_of(pt2::Element element);
int64_t onnx_number_of(pt2::Element element);  ///< as Cast takes it

using OnnxRule = void (*)(const OnnxCall&);

struct OnnxOperator {
  std::string_view name;  ///< "conv2d" of aten, without the overload and the _ of those in place
  OnnxRule rule;
  bool shares = false;  ///< what it gives may be a view of what goes in
};

/// Null for an operator that has none; of aten.
const OnnxOperator* onnx_operator(std::string_view name);
/// Of layers: convolutions, norms, pools, attention, recurrent ones.
std::span<const OnnxOperator> onnx_layers();

/// Of arithmetic on sizes, "_operator.mul"; null for others.
OnnxRule onnx_number_rule(std::string_view target);

}  // namespace tutti::exported::detail
