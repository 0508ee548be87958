#include "tutti/exported/detail/onnx_call.h"

#include <fmt/format.h>

#include <algorithm>

#include "tutti/exported/detail/served.h"

namespace tutti::exported::detail {
namespace {

using onnx::Value;
using pt2::Element;

[[noreturn]] void cannot(const std::string& why) { throw CannotSay{why}; }

}  // namespace

DType dtype_of(Element element) {
  switch (element) {
    case Element::uint8: return DType::uint8;
    case Element::int8: return DType::int8;
    case Element::int16: return DType::int16;
    case Element::int32: return DType::int32;
    case Element::int64: return DType::int64;
    case Element::float16: return DType::float16;
    case Element::float32: return DType::float32;
    case Element::float64: return DType::float64;
    case Element::boolean: return DType::boolean;
    case Element::bfloat16: return DType::bfloat16;
    default: cannot(fmt::format("{} is no type of ours in ONNX", pt2::name_of(element)));
  }
}

int64_t onnx_number_of(Element element) { return onnx::type_number(dtype_of(element)); }

const pt2::Argument* OnnxCall::find(std::string_view name) const {
  for (const pt2::NodeInput& input : node_.inputs)
    if (input.name == name)
      return std::holds_alternative<pt2::None>(input.argument.value) ? nullptr : &input.argument;
  return nullptr;
}

Value OnnxCall::tensor(std::string_view name) const {
  const pt2::Argument* const argument = find(name);
  const auto* value = argument ? std::get_if<pt2::ValueName>(&argument->value) : nullptr;
  if (value == nullptr) cannot(fmt::format("\"{}\" is no tensor", name));
  const auto* item = std::get_if<Value>(&walk_.items.at(value->name));
  if (item == nullptr) cannot(fmt::format("\"{}\" is a number", name));
  return *item;
}

std::vector<Value> OnnxCall::tensors(std::string_view name) const {
  const pt2::Argument* const argument = find(name);
  const auto* list = argument ? std::get_if<pt2::List>(&argument->value) : nullptr;
  if (list == nullptr) cannot(fmt::format("\"{}\" is no list of tensors", name));
  std::vector<Value> values;
  for (const pt2::Argument& one : *list) {
    const auto* value = std::get_if<pt2::ValueName>(&one.value);
    if (value == nullptr) cannot(fmt::format("\"{}\" has one that is no tensor", name));
    values.push_back(std::get<Value>(walk_.items.at(value->name)));
  }
  return values;
}

OnnxNumber OnnxCall::number(const pt2::Argument& argument) const {
  if (const auto* whole = std::get_if<int64_t>(&argument.value))
    return {*whole, constant({*whole})};
  const auto* value = std::get_if<pt2::ValueName>(&argument.value);
  const auto* item = value ? std::get_if<OnnxNumber>(&walk_.items.at(value->name)) : nullptr;
  if (item == nullptr) cannot("a number is expected where something else is");
  return *item;
}

int64_t OnnxCall::whole(std::string_view name, std::optional<int64_t> otherwise) const {
  const pt2::Argument* const argument = find(name);
  if (argument == nullptr) {
    if (!otherwise) cannot(fmt::format("\"{}\" is missing", name));
    return *otherwise;
  }
  if (const auto* truth = std::get_if<bool>(&argument->value)) return *truth ? 1 : 0;
  const OnnxNumber found = number(*argument);
  if (!found.known) cannot(fmt::format("\"{}\" is known only when it runs", name));
  return *found.known;
}

double OnnxCall::real(std::string_view name, std::optional<double> otherwise) const {
  const pt2::Argument* const argument = find(name);
  if (argument == nullptr && otherwise) return *otherwise;
  if (argument != nullptr)
    if (const auto* real = std::get_if<double>(&argument->value)) return *real;
  return static_cast<double>(whole(name));
}

bool OnnxCall::truth(std::string_view name, bool otherwise) const {
  const pt2::Argument* const argument = find(name);
  const auto* truth = argument ? std::get_if<bool>(&argument->value) : nullptr;
  return truth ? *truth : otherwise;
}

std::string OnnxCall::text(std::string_view name, const char* otherwise) const {
  const pt2::Argument* const argument = find(name);
  const auto* text = argument ? std::get_if<std::string>(&argument->value) : nullptr;
  return text ? *text : otherwise;
}

std::vector<int64_t> OnnxCall::wholes(std::string_view name,
                                      std::optional<std::vector<int64_t>> otherwise) const {
  const pt2::Argument* const argument = find(name);
  if (argument == nullptr) {
    if (!otherwise) cannot(fmt::format("\"{}\" is missing", name));
    return *otherwise;
  }
  if (std::holds_alternative<int64_t>(argument->value)) return {whole(name)};
  const auto* list = std::get_if<pt2::List>(&argument->value);
  if (list == nullptr) cannot(fmt::format("\"{}\" is no list of numbers", name));
  if (list->empty() && otherwise) return *otherwise;
  std::vector<int64_t> numbers;
  for (const pt2::Argument& one : *list) {
    const OnnxNumber found = number(one);
    if (!found.known) cannot(fmt::format("\"{}\" is known only when it runs", name));
    numbers.push_back(*found.known);
  }
  return numbers;
}

std::vector<int64_t> OnnxCall::pair(std::string_view name, std::vector<int64_t> otherwise) const {
  auto numbers = wholes(name, std::move(otherwise));
  if (numbers.size() == 1) numbers.push_back(numbers[0]);
  if (numbers.size() != 2) cannot(fmt::format("\"{}\" is no pair", name));
  return numbers;
}

Value OnnxCall::sizes(std::string_view name) const {
  const pt2::Argument* const argument = find(name);
  const auto* list = argument ? std::get_if<pt2::List>(&argument->value) : nullptr;
  if (list == nullptr) cannot(fmt::format("\"{}\" is no list of sizes", name));
  std::vector<OnnxNumber> numbers;
  for (const pt2::Argument& one : *list) numbers.push_back(number(one));
  if (std::ranges::all_of(numbers, [](const OnnxNumber& n) { return n.known.has_value(); })) {
    std::vector<int64_t> known;
    for (const OnnxNumber& one : numbers) known.push_back(*one.known);
    return constant(known);
  }
  std::vector<Value> values;
  for (const OnnxNumber& one : numbers) values.push_back(one.value);
  return add("Concat", values, {{"axis", int64_t{0}}});
}

const std::string& OnnxCall::name_of(std::string_view name) const {
  const pt2::Argument* const argument = find(name);
  const auto* value = argument ? std::get_if<pt2::ValueName>(&argument->value) : nullptr;
  if (value == nullptr) cannot(fmt::format("\"{}\" is no value of the graph", name));
  return value->name;
}

const pt2::TensorMeta& OnnxCall::meta(std::string_view name) const {
  const pt2::Argument* const argument = find(name);
  const auto* value = argument ? std::get_if<pt2::ValueName>(&argument->value) : nullptr;
  const auto found = value ? walk_.graph.tensors.find(value->name) : walk_.graph.tensors.end();
  if (found == walk_.graph.tensors.end()) cannot(fmt::format("\"{}\" is no tensor", name));
  return found->second;
}

int64_t OnnxCall::axis(std::string_view name, std::optional<int64_t> otherwise) const {
  const int64_t found = whole(name, otherwise);
  const std::string_view of = has("self") ? "self" : "input";
  return found < 0 ? found + rank(has(of) ? of : "tensors") : found;
}

int64_t OnnxCall::side(int64_t axis, std::string_view name) const {
  const pt2::Size& size = meta(name).sizes.at(static_cast<size_t>(axis));
  if (!size.is_known())
    cannot(fmt::format("size {} of \"{}\" is known only when it runs", axis, name));
  return size.value;
}

Element OnnxCall::result_element() const {
  const auto found = walk_.graph.tensors.find(node_.outputs.at(0).names.at(0));
  if (found == walk_.graph.tensors.end()) cannot("it gives no tensor");
  return found->second.element;
}

Value OnnxCall::scalar(double number, Element element) const {
  const Array array = Array::zeros(dtype_of(element), {});
  switch (array.dtype()) {
    case DType::float32: array.as<float>()[0] = static_cast<float>(number); break;
    case DType::float64: array.as<double>()[0] = number; break;
    case DType::int64: array.as<int64_t>()[0] = static_cast<int64_t>(number); break;
    case DType::int32: array.as<int32_t>()[0] = static_cast<int32_t>(number); break;
    case DType::boolean: array.as<bool>()[0] = number != 0; break;
    default: return cast(scalar(number, Element::float32), element);
  }
  return walk_.program.constant(array);
}

Value OnnxCall::cast(const Value& a, Element to) const {
  return add("Cast", {a}, {{"to", onnx_number_of(to)}});
}

Value OnnxCall::size_of(const Value& a, int64_t axis) const {
  return add("Shape", {a}, {{"start", axis}, {"end", axis + 1}});
}

Value OnnxCall::operand(std::string_view name, Element element) const {
  const pt2::Argument* const argument = find(name);
  if (argument == nullptr) cannot(fmt::format("\"{}\" is missing", name));
  if (const auto* value = std::get_if<pt2::ValueName>(&argument->value)) {
    const OnnxItem& item = walk_.items.at(value->name);
    if (const auto* number = std::get_if<OnnxNumber>(&item)) return cast(number->value, element);
    const Value& found = std::get<Value>(item);
    return meta(name).element == element ? found : cast(found, element);
  }
  return scalar(real(name), element);
}

void OnnxCall::give(size_t output, Value value) const {
  const std::string& name = node_.outputs.at(output).names.at(0);
  if (!name.empty()) walk_.items.insert_or_assign(name, std::move(value));
}

void OnnxCall::give_list(std::vector<Value> values) const {
  std::vector<std::string> names;
  for (const pt2::NodeOutput& output : node_.outputs)
    names.insert(names.end(), output.names.begin(), output.names.end());
  if (names.size() != values.size()) cannot("it gives another number of tensors than at export");
  for (size_t i = 0; i < names.size(); ++i)
    if (!names[i].empty()) walk_.items.insert_or_assign(names[i], std::move(values[i]));
}

void OnnxCall::give_number(OnnxNumber number) const {
  walk_.items.insert_or_assign(node_.outputs.at(0).names.at(0), std::move(number));
}

}  // namespace tutti::exported::detail
