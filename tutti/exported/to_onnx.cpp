#include "tutti/exported/to_onnx.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <memory>
#include <set>
#include <stdexcept>
#include <utility>
#include <variant>

#include "tutti/base/error.h"
#include "tutti/exported/detail/loaded.h"
#include "tutti/exported/detail/onnx_call.h"
#include "tutti/exported/detail/served.h"
#include "tutti/sync/tensors.h"

namespace tutti::exported {
namespace {

using detail::OnnxCall;
using detail::OnnxWalk;
using onnx::Value;
using pt2::InputSpec;

bool is_in_place(const std::string& name) {
  return name.size() > 1 && name.ends_with('_') && !name.ends_with("__");
}

const detail::OnnxOperator* operator_for(const std::string& target) {
  const auto words = detail::operator_words(target);
  if (words.space != "aten") return nullptr;
  const std::string name =
      is_in_place(words.name) ? words.name.substr(0, words.name.size() - 1) : words.name;
  return detail::onnx_operator(name);
}

std::string text_of(const std::string& target) {
  const auto words = detail::operator_words(target);
  return words.name.empty() ? target : words.text();
}

onnx::Type type_of(const pt2::TensorMeta& meta, const std::string& batch) {
  onnx::Type type{detail::dtype_of(meta.element), {}};
  for (const pt2::Size& size : meta.sizes)
    type.shape.push_back(size.is_known()            ? onnx::Dimension(size.value)
                         : size.expression == batch ? onnx::kBatch
                                                    : onnx::Dimension(size.expression));
  return type;
}

/// One file, and the values that are to be in it.
class Conversion {
 public:
  Conversion(const detail::ProgramFile& file, onnx::Program& to, const OnnxValues& values)
      : file_(file), values_(values), maker_(file), to_(to), walk_{to, graph(), {}, {}, {}} {}

  std::vector<Value> add(const std::vector<Value>& inputs) {
    size_t user = 0;
    for (size_t i = 0; i < file_.program.inputs.size(); ++i) {
      const auto* name = std::get_if<pt2::ValueName>(&graph().inputs[i].value);
      if (name == nullptr) continue;
      const InputSpec& spec = file_.program.inputs[i];
      walk_.items.emplace(name->name,
                          spec.kind == InputSpec::Kind::user ? inputs.at(user++) : weight(spec));
    }
    for (const pt2::Node& node : graph().nodes) add(node);
    to_.scope("");
    std::vector<Value> outputs;
    for (const pt2::Argument& argument : graph().outputs) {
      const auto* name = std::get_if<pt2::ValueName>(&argument.value);
      if (name != nullptr && graph().tensors.contains(name->name))
        outputs.push_back(std::get<Value>(walk_.items.at(name->name)));
    }
    return outputs;
  }

 private:
  const pt2::Graph& graph() const { return file_.program.graph; }

  // What is to be written for a tensor of the file: given, or its own.
  const at::Tensor& given_for(const InputSpec& spec, const at::Tensor& own) {
    const std::string& name = spec.target;
    const bool is_of_module = spec.kind == InputSpec::Kind::parameter ||
                              (spec.kind == InputSpec::Kind::buffer && spec.persistent);
    if (values_.empty() || !is_of_module) return own;
    const auto found = find_value(spec, own);
    if (found == values_.end())
      throw DataError(fmt::format("\"{}\" of the graph is not among the {} values that were given",
                                  name, values_.size()));
    const at::Tensor& given = found->second;
    if (given.sizes() != own.sizes() || given.scalar_type() != own.scalar_type())
      throw DataError(fmt::format("\"{}\" is {} [{}], the graph has it as {} [{}]", name,
                                  c10::toString(given.scalar_type()),
                                  fmt::join(given.sizes(), ", "), c10::toString(own.scalar_type()),
                                  fmt::join(own.sizes(), ", ")));
    return given;
  }

  // By any of the names that a tied one has.
  OnnxValues::const_iterator find_value(const InputSpec& spec, const at::Tensor& own) {
    auto found = values_.find(spec.target);
    for (const InputSpec& other : file_.program.inputs) {
      if (found != values_.end()) break;
      if (other.kind == spec.kind && maker_.make(other.target).is_same(own))
        found = values_.find(other.target);
    }
    return found;
  }

  // Tied ones are one weight, which the first name has.
  Value weight(const InputSpec& spec) {
    const at::Tensor own = maker_.make(spec.target);
    const auto known = weights_.find(own.unsafeGetTensorImpl());
    if (known != weights_.end()) return known->second;
    const auto plain =
        std::make_shared<at::Tensor>(given_for(spec, own).detach().cpu().contiguous());
    const MemorySpan span = span_of(*plain);
    const Value value =
        to_.weight(spec.target, Array::view(span.data, span.dtype, plain->sizes().vec(), plain));
    weights_.emplace(own.unsafeGetTensorImpl(), value);
    return value;
  }

  void add(const pt2::Node& node) {
    const auto words = detail::operator_words(node.target);
    to_.scope(node.module);
    try {
      if (const auto rule = detail::onnx_number_rule(node.target)) return rule({walk_, node});
      const auto* row = operator_for(node.target);
      const OnnxCall call(walk_, node);
      const bool in_place = is_in_place(words.name);
      const char* const self = call.has("self") ? "self" : "input";
      if (in_place && walk_.shared.contains(call.name_of(self)))
        throw detail::CannotSay{"it writes to a tensor that others see"};
      row->rule(call);
      if (in_place) walk_.items[call.name_of(self)] = walk_.items.at(node.outputs[0].names[0]);
      if (row->shares) share(call, self);
    } catch (const detail::CannotSay& cannot) {
      refuse(node, cannot.why);
    } catch (const std::bad_variant_access&) {
      refuse(node, "an argument is of another kind");
    } catch (const std::out_of_range&) {
      refuse(node, "an argument is of another length, or a value that nobody has made");
    }
  }

  [[noreturn]] void refuse(const pt2::Node& node, const std::string& why) const {
    throw UsageError(fmt::format("{}: ONNX cannot say {}: {}{}{}", file_.archive.path().string(),
                                 text_of(node.target), why, node.line.empty() ? "" : "; ",
                                 node.line));
  }

  void share(const OnnxCall& call, const char* self) {
    walk_.shared.insert(call.name_of(self));
    for (const pt2::NodeOutput& output : call.node().outputs)
      walk_.shared.insert(output.names.begin(), output.names.end());
  }

  const detail::ProgramFile& file_;
  const OnnxValues& values_;
  detail::TensorMaker maker_;
  onnx::Program& to_;
  OnnxWalk walk_;
  std::map<const at::TensorImpl*, Value> weights_;
};

}  // namespace

std::vector<NotServed> not_in_onnx(const pt2::Program& program) {
  std::vector<NotServed> found;
  std::set<std::string> seen;
  for (const pt2::Node& node : program.graph.nodes) {
    if (detail::onnx_number_rule(node.target) != nullptr || operator_for(node.target) != nullptr)
      continue;
    if (seen.insert(node.target).second)
      found.push_back({text_of(node.target), "has no row in ours of ONNX", node.line});
  }
  return found;
}

ForOnnx::ForOnnx(const std::filesystem::path& path)
    : file_(std::make_shared<const detail::ProgramFile>(path)) {
  const pt2::Program& program = file_->program;
  const auto missing = not_in_onnx(program);
  if (!missing.empty()) {
    std::string message =
        fmt::format("{}: {} of its operators are not in ONNX here:", path.string(), missing.size());
    for (const NotServed& one : missing)
      message += fmt::format("\n  {}: {}{}{}", one.name, one.reason, one.line.empty() ? "" : "; ",
                             one.line);
    throw UsageError(message);
  }
  const auto metas = detail::user_inputs(program);
  std::string batch;
  if (!metas.empty() && !metas[0]->sizes.empty()) batch = metas[0]->sizes[0].expression;
  try {
    for (size_t i = 0; i < metas.size(); ++i)
      inputs_.push_back({program.input_names.at(i), type_of(*metas[i], batch)});
    for (const pt2::Argument& argument : program.graph.outputs) {
      const auto* name = std::get_if<pt2::ValueName>(&argument.value);
      const auto meta = name ? program.graph.tensors.find(name->name) : program.graph.tensors.end();
      if (meta != program.graph.tensors.end())
        outputs_.push_back({file_->output_names.at(outputs_.size()), type_of(meta->second, batch)});
    }
  } catch (const detail::CannotSay& cannot) {
    throw UsageError(fmt::format("{}: an input or output: {}", path.string(), cannot.why));
  }
}

std::vector<Value> ForOnnx::add_to(onnx::Program& program, const std::vector<Value>& inputs,
                                   const OnnxValues& values) const {
  if (inputs.size() != inputs_.size())
    throw UsageError(
        fmt::format("onnx: got {} inputs, the file takes {}", inputs.size(), inputs_.size()));
  return Conversion(*file_, program, values).add(inputs);
}

onnx::Program to_onnx(const std::filesystem::path& path, const OnnxValues& values) {
  const ForOnnx file(path);
  onnx::Program program("graph");
  std::vector<Value> inputs;
  for (const onnx::Port& port : file.inputs())
    inputs.push_back(program.input(port.name, port.type));
  for (const onnx::Port& port : file.outputs()) program.reserve_output(port.name);
  const auto outputs = file.add_to(program, inputs, values);
  for (size_t i = 0; i < outputs.size(); ++i)
    program.output(file.outputs()[i].name, outputs[i], file.outputs()[i].type);
  return program;
}

}  // namespace tutti::exported
