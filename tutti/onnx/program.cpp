#include "tutti/onnx/program.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>

#include "tutti/base/error.h"
#include "tutti/base/utf8.h"

namespace tutti::onnx {

std::string to_string(const Type& type) {
  std::vector<std::string> sides;
  for (const Dimension& side : type.shape)
    sides.push_back(side.symbol.empty() ? std::to_string(side.size) : side.symbol);
  return fmt::format("{} [{}]", name_of(type.dtype), fmt::join(sides, ", "));
}

void Program::take(std::string_view what, const std::string& name) {
  if (name.empty() || first_wrong_byte(name) != name.size())
    throw UsageError(fmt::format("onnx: an {} is called \"{}\", expected UTF-8 text", what, name));
  if (!taken_.insert(name).second)
    throw UsageError(fmt::format("onnx: two inputs or outputs are called \"{}\"", name));
}

std::string Program::unique(const std::string& wanted) {
  std::string name = wanted;
  for (int64_t i = 2; !taken_.insert(name).second; ++i) name = fmt::format("{}_{}", wanted, i);
  return name;
}

Value Program::input(const std::string& name, Type type) {
  take("input", name);
  inputs_.push_back({name, std::move(type)});
  return {name};
}

void Program::reserve_output(const std::string& name) {
  take("output", name);
  reserved_.insert(name);
}

void Program::output(const std::string& name, const Value& value, Type type) {
  if (reserved_.erase(name) == 0) take("output", name);
  // By a node of its own: a value may be several outputs, or an input.
  nodes_.push_back({"Identity", unique(name + "/Identity"), {value.name}, {name}, {}});
  outputs_.push_back({name, std::move(type)});
}

Value Program::weight(const std::string& name, const Array& array) {
  const auto [known, fresh] = by_name_.try_emplace(name);
  if (fresh) {
    known->second = {unique(name)};
    weights_.push_back({known->second.name, array});
  }
  return known->second;
}

Value Program::constant(const Array& array) {
  weights_.push_back({unique(scope_.empty() ? "constant" : scope_ + "/constant"), array});
  return {weights_.back().name};
}

Value Program::constant(const std::vector<int64_t>& numbers) {
  const Array array = Array::zeros(DType::int64, {std::ssize(numbers)});
  std::ranges::copy(numbers, array.as<int64_t>().begin());
  return constant(array);
}

Value Program::constant(float number) {
  const Array array = Array::zeros(DType::float32, {});
  array.as<float>()[0] = number;
  return constant(array);
}

Value Program::node(std::string_view op, const std::vector<Value>& inputs,
                    std::vector<Attribute> attributes) {
  return nodes(op, inputs, 1, std::move(attributes)).front();
}

std::vector<Value> Program::nodes(std::string_view op, const std::vector<Value>& inputs,
                                  int num_outputs, std::vector<Attribute> attributes) {
  Node node{std::string(op),
            unique(scope_.empty() ? std::string(op) : fmt::format("{}/{}", scope_, op)),
            {},
            {},
            std::move(attributes)};
  for (const Value& input : inputs) node.inputs.push_back(input.name);
  std::vector<Value> made;
  for (int i = 0; i < num_outputs; ++i) {
    made.push_back({unique(node.name + ":" + std::to_string(i))});
    node.outputs.push_back(made.back().name);
  }
  nodes_.push_back(std::move(node));
  return made;
}

std::map<std::string, int64_t> Program::operators() const {
  std::map<std::string, int64_t> counts;
  for (const Node& node : nodes_) ++counts[node.op];
  return counts;
}

int64_t Program::weight_bytes() const {
  int64_t bytes = 0;
  for (const Weight& weight : weights_) bytes += weight.array.num_bytes();
  return bytes;
}

}  // namespace tutti::onnx
