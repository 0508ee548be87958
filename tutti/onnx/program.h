/// A network as ONNX, as it is put together and written: what other runtimes take. No library of
/// ONNX is needed; https://onnx.ai/onnx/operators says what each operator computes.
///
///   onnx::Program program("net");
///   auto x = program.input("x", {DType::float32, {onnx::kBatch, 784}});
///   auto w = program.weight("fc.weight", array);           // [10, 784]
///   auto y = program.node("Gemm", {x, w}, {{"transB", 1}});
///   program.output("y", y, {DType::float32, {onnx::kBatch, 10}});
///   program.write("net.onnx");
///
/// Thread rule: a Program belongs to one thread; const functions may be called from any.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "tutti/base/array.h"

namespace tutti::onnx {

/// Of the operators: that of ONNX 1.13, which onnxruntime takes from 1.14 on.
inline constexpr int64_t kOpset = 18;
/// Of the file: that of ONNX 1.12.
inline constexpr int64_t kIrVersion = 8;

/// A size, or the name of one that is known when the program runs.
struct Dimension {
  Dimension(int64_t fixed) : size(fixed) {}  // NOLINT(google-explicit-constructor)
  explicit Dimension(std::string name) : symbol(std::move(name)) {}

  int64_t size = 0;
  std::string symbol;  ///< "": it is `size`
};

/// The first dimension of inputs and outputs.
inline const Dimension kBatch{std::string("batch")};

struct Type {
  DType dtype = DType::float32;
  std::vector<Dimension> shape;
};

/// What a file says for it (TensorProto.DataType).
int type_number(DType dtype);

/// "float32 [batch, 784]".
std::string to_string(const Type& type);

/// What a node makes, a weight, or an input; of one program.
struct Value {
  std::string name;
};

struct Attribute {
  std::string name;
  std::variant<int64_t, float, std::string, std::vector<int64_t>> value;
};

struct Node {
  std::string op;    ///< "Conv"
  std::string name;  ///< unique
  std::vector<std::string> inputs, outputs;
  std::vector<Attribute> attributes;
};

struct Port {
  std::string name;
  Type type;
};

struct Weight {
  std::string name;
  Array array;
};

/// What write() has made.
struct WrittenFile {
  std::filesystem::path data;  ///< of the weights, where they are in a file of their own; else ""
  int64_t bytes = 0;           ///< of all
};

class Program {
 public:
  /// `name`: of the graph, for people.
  explicit Program(std::string name) : name_(std::move(name)) {}

  /// Names of inputs and outputs are taken as they are: UsageError for one that is empty, no UTF-8
  /// or there before. Those of nodes, weights and values are made unique by a number.
  Value input(const std::string& name, Type type);
  void output(const std::string& name, const Value& value, Type type);
  /// Keeps this name for an output that comes later.
  void reserve_output(const std::string& name);

  /// Elements of `array` must not change until the program is written. Again with the name of one
  /// that is there: that one.
  Value weight(const std::string& name, const Array& array);
  Value constant(const Array& array);
  Value constant(const std::vector<int64_t>& numbers);  ///< int64 [n]
  Value constant(float number);                         ///< float32 []

  /// Adds a node of the default domain; gives its only output.
  Value node(std::string_view op, const std::vector<Value>& inputs,
             std::vector<Attribute> attributes = {});
  /// One with several outputs.
  std::vector<Value> nodes(std::string_view op, const std::vector<Value>& inputs, int num_outputs,
                           std::vector<Attribute> attributes = {});

  /// Begins the names of nodes that come next: "layer1.conv".
  void scope(std::string name) { scope_ = std::move(name); }

  /// Text by key, for whoever loads the file.
  void metadata(const std::string& key, std::string text) { metadata_[key] = std::move(text); }

  const std::vector<Node>& all_nodes() const noexcept { return nodes_; }
  const std::vector<Port>& inputs() const noexcept { return inputs_; }
  const std::vector<Port>& outputs() const noexcept { return outputs_; }
  const std::vector<Weight>& weights() const noexcept { return weights_; }
  /// How many nodes of each operator.
  std::map<std::string, int64_t> operators() const;
  int64_t weight_bytes() const;

  /// The file as ONNX has it (a ModelProto), weights in it. Error above 2 GB, which is all that its
  /// format can hold.
  std::string bytes() const;

  /// Writes it atomically (base/file.h). Weights of more than `most_inside` bytes stand in a file
  /// beside it, `path` and ".data", whose name is in `path`: move both. Throws what
  /// write_file_atomically() does, and as bytes().
  WrittenFile write(const std::filesystem::path& path, int64_t most_inside = kMostInside) const;

  static constexpr int64_t kMostInside = 1'000'000'000;

 private:
  std::string unique(const std::string& wanted);
  void take(std::string_view what, const std::string& name);

  std::string name_, scope_;
  std::vector<Port> inputs_, outputs_;
  std::vector<Node> nodes_;
  std::vector<Weight> weights_;
  std::map<std::string, Value> by_name_;  // of weights, by the name that was asked for
  std::map<std::string, std::string> metadata_;
  std::set<std::string> taken_, reserved_;
};

}  // namespace tutti::onnx
