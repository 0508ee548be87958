/// What a .pt2 file holds, as plain values: the graph of an ExportedProgram of PyTorch, its
/// signature, its symbols' ranges and where its tensors are.
///
///   const pt2::Archive archive("net.pt2");
///   const pt2::Program program = pt2::read_program(archive);
///
/// Read by the names of the format's members, not by their order: schema 8 of any minor version.
/// Nothing of it is run here, and no tensor is read: tutti/exported does.
/// Thread rule: values, and a pure function.
#pragma once

#include <complex>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "tutti/pt2/archive.h"
#include "tutti/pt2/tree.h"

namespace tutti::pt2 {

/// The file's own numbers of element types, which are not LibTorch's.
enum class Element : uint8_t {
  uint8 = 1,
  int8 = 2,
  int16 = 3,
  int32 = 4,
  int64 = 5,
  float16 = 6,
  float32 = 7,
  float64 = 8,
  complex64 = 10,
  complex128 = 11,
  boolean = 12,
  bfloat16 = 13,
};
std::string_view name_of(Element element) noexcept;  ///< "float32", "complex64", ...
int64_t size_of(Element element) noexcept;           ///< bytes

enum class MemoryFormat : uint8_t {
  contiguous = 1,
  channels_last = 2,
  channels_last_3d = 3,
  preserve = 4,
};
struct Strided {};  ///< the one layout that is read
struct DeviceName {
  std::string name;
};  ///< "cpu", "cuda:0"

/// A number that is known, or an expression of symbols.
struct Size {
  int64_t value = 0;       ///< where it is no expression; else what the example had, or 0
  std::string expression;  ///< "s77", "2*s77"; empty: none
  bool is_known() const { return expression.empty(); }
  /// The symbol that it is; empty for a number and for an expression of several parts.
  std::string_view symbol() const;
};

struct TensorMeta {
  Element element = Element::float32;
  std::vector<Size> sizes;
  std::vector<Size> strides;  ///< of elements
  int64_t offset = 0;         ///< of the first element in its storage
  bool requires_grad = false;
  std::string device;
};

struct Graph;
struct Argument;
struct None {};
struct Unread {
  std::string kind;  ///< of an argument that nothing here reads: "as_custom_obj"
};
/// Another value of the graph: a tensor, or a number that steps compute.
struct ValueName {
  std::string name;
};
using List = std::vector<Argument>;

/// What goes into a node. Which type a list of none has, only the operator's schema knows.
struct Argument {
  std::variant<None, ValueName, List, bool, int64_t, double, std::complex<double>, std::string,
               Element, MemoryFormat, Strided, DeviceName, std::shared_ptr<const Graph>, Unread>
      value;
};

struct NodeInput {
  std::string name;  ///< of the schema's argument; "" of higher-order and Python's operators
  Argument argument;
};

/// What comes out: one value, or a list of as many as the export saw. "": nobody wants it.
struct NodeOutput {
  bool is_list = false;
  std::vector<std::string> names;
};

struct Node {
  std::string target;  ///< "torch.ops.aten.conv2d.default", "_operator.mul"
  std::vector<NodeInput> inputs;
  std::vector<NodeOutput> outputs;
  std::string line;    ///< of Python, that made it: "net.py:12, in forward: y = self.a(x)"; or ""
  std::string module;  ///< the innermost module that made it: "layer1.0.conv1"; or ""
};

struct Graph {
  std::vector<Argument> inputs;  ///< a ValueName, or what it was at export
  std::vector<Argument> outputs;
  std::vector<Node> nodes;
  std::map<std::string, TensorMeta> tensors;  ///< by name of the value
};

/// What an input of the graph is.
struct InputSpec {
  enum class Kind : uint8_t { parameter, buffer, constant, user, fixed };
  Kind kind = Kind::user;
  std::string target;      ///< of a parameter, buffer or constant: its name in the module
  bool persistent = true;  ///< of a buffer: whether a state dict has it
};

/// A tensor of the module, in a record that others may share: tied weights do.
struct StoredTensor {
  std::string record;  ///< "data/weights/weight_0"
  TensorMeta meta;     ///< sizes are known, and lie within the record
  bool is_parameter = false;
};

struct Range {
  std::optional<int64_t> min, max;  ///< inclusive
};

struct Program {
  Graph graph;
  std::vector<InputSpec> inputs;                ///< one for each of graph.inputs
  std::map<std::string, StoredTensor> tensors;  ///< by name in the module
  std::vector<std::string> order;  ///< those names of parameters and buffers, as inputs have them
  std::map<std::string, Range> ranges;  ///< by symbol: "s77"
  /// Of forward's arguments and what it gives. Leaves are the user's inputs, outputs, in order.
  Tree input_tree, output_tree;
  /// One for each input of the user ("x", "batch.ids"), and one for each of graph.outputs: "0",
  /// "1" where they come in no dictionary, or "output" where it is the only one.
  std::vector<std::string> input_names, output_names;
  std::string torch_version;        ///< that wrote it
  std::vector<std::string> guards;  ///< lines of Python, for people
};

/// Bounds of what is read: a file is refused, not trusted. Sound models stay far below.
struct ProgramLimits {
  size_t json_bytes = 256u << 20;
  int json_depth = 64;      ///< arrays and objects within one another
  int graph_depth = 8;      ///< graphs within graphs
  size_t nodes = 1u << 18;  ///< of all graphs
  size_t tensors = 1u << 18;
  size_t dimensions = 64;
};

/// Reads model `name` of an archive. DataError, with the record and place, what was got and
/// expected, for what does not agree with itself: values that are used before they are made or made
/// twice, tensors beyond their record, signatures of other lengths; for another schema than 8; for
/// tensors that are pickles; and for a program whose dialect is not TRAINING, since decomposed
/// graphs give wrong gradients: it says what to export instead.
Program read_program(const Archive& archive, const std::string& name = "model",
                     const ProgramLimits& limits = {});

}  // namespace tutti::pt2
