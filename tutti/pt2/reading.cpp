#include "tutti/pt2/detail/reading.h"

#include <algorithm>
#include <array>
#include <limits>
#include <utility>

namespace tutti::pt2 {
namespace {

struct ElementWords {
  Element element;
  std::string_view name;
  int64_t bytes;
};
constexpr ElementWords kElements[] = {
    {Element::uint8, "uint8", 1},         {Element::int8, "int8", 1},
    {Element::int16, "int16", 2},         {Element::int32, "int32", 4},
    {Element::int64, "int64", 8},         {Element::float16, "float16", 2},
    {Element::float32, "float32", 4},     {Element::float64, "float64", 8},
    {Element::complex64, "complex64", 8}, {Element::complex128, "complex128", 16},
    {Element::boolean, "bool", 1},        {Element::bfloat16, "bfloat16", 2},
};

const ElementWords& words_of(Element element) noexcept {
  const auto* found = std::ranges::find(kElements, element, &ElementWords::element);
  return found == std::end(kElements) ? kElements[0] : *found;
}

constexpr int64_t kStrided = 7;

/// "Symbol('s77', positive=True, integer=True)" becomes "s77", also within what is around it.
std::string without_symbols(std::string_view text) {
  constexpr std::string_view kBegin = "Symbol('";
  std::string out;
  for (size_t at = 0; at < text.size();) {
    const size_t begin = text.find(kBegin, at);
    const size_t quote = begin == text.npos ? text.npos : text.find('\'', begin + kBegin.size());
    const size_t end = quote == text.npos ? text.npos : text.find(')', quote);
    if (end == text.npos) return out.append(text.substr(at));
    out.append(text.substr(at, begin - at));
    out.append(text.substr(begin + kBegin.size(), quote - begin - kBegin.size()));
    at = end + 1;
  }
  return out;
}

}  // namespace

std::string_view name_of(Element element) noexcept { return words_of(element).name; }
int64_t size_of(Element element) noexcept { return words_of(element).bytes; }

std::string_view Size::symbol() const {
  const bool plain = std::ranges::all_of(
      expression, [](unsigned char c) { return std::isalnum(c) != 0 || c == '_'; });
  return plain ? std::string_view(expression) : std::string_view();
}

namespace detail {

Union union_of(const Json& json) {
  if (!json.is_object() || json.size() != 1)
    throw JsonError(
        fmt::format("{} of {} members, expected an object of one", json.type_name(), json.size()));
  const auto& [kind, value] = json.items().front();
  return {kind, value};
}

int64_t integer_of(const Json& json) {
  if (!json.is_number_integer())
    throw JsonError(fmt::format("{}, expected a whole number", json.type_name()));
  if (json.is_number_unsigned() &&
      json.get<uint64_t>() > uint64_t{std::numeric_limits<int64_t>::max()})
    throw JsonError(fmt::format("the number {}, expected one below 2^63", json.get<uint64_t>()));
  return json.get<int64_t>();
}

double real_of(const Json& json) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  if (json == "Infinity") return kInfinity;
  if (json == "-Infinity") return -kInfinity;
  if (json == "NaN") return std::numeric_limits<double>::quiet_NaN();
  return json.get<double>();
}

bool boolean_of(const Json& json) {
  if (!json.is_boolean()) throw JsonError(fmt::format("{}, expected boolean", json.type_name()));
  return json.get<bool>();
}

Element element_of(const Json& json) {
  const int64_t number = integer_of(json);
  for (const ElementWords& words : kElements)
    if (static_cast<int64_t>(words.element) == number) return words.element;
  throw JsonError(fmt::format("element type {}, which is not read (it may be a float8)", number));
}

MemoryFormat memory_format_of(const Json& json) {
  const int64_t number = integer_of(json);
  if (number < 1 || number > 4) throw JsonError(fmt::format("memory format {}", number));
  return static_cast<MemoryFormat>(number);
}

void require_strided(const Json& json) {
  if (const int64_t layout = integer_of(json); layout != kStrided)
    throw JsonError(fmt::format("layout {}, expected {} (strided)", layout, kStrided));
}

std::string device_of(const Json& json) {
  std::string name = json.at("type").text();
  if (json.contains("index") && !json.at("index").is_null())
    name += fmt::format(":{}", integer_of(json.at("index")));
  return name;
}

Size size_of_symbols(const Json& json) {
  const auto [kind, value] = union_of(json);
  if (kind == "as_int") return {.value = integer_of(value), .expression = {}};
  if (kind != "as_expr")
    throw JsonError(fmt::format("size \"{}\", expected as_int or as_expr", kind));
  Size size{.value = 0, .expression = without_symbols(value.at("expr_str").text())};
  if (size.expression.empty()) throw JsonError("an empty expression");
  if (value.contains("hint") && value.at("hint").is_object()) {
    const auto hint = union_of(value.at("hint"));
    if (hint.kind == "as_int") size.value = integer_of(hint.value);
  }
  return size;
}

TensorMeta meta_of(const Json& json, size_t dimensions) {
  TensorMeta meta;
  meta.element = element_of(json.at("dtype"));
  for (const Json& size : json.at("sizes").elements()) meta.sizes.push_back(size_of_symbols(size));
  for (const Json& stride : json.at("strides").elements())
    meta.strides.push_back(size_of_symbols(stride));
  if (meta.sizes.size() != meta.strides.size() || meta.sizes.size() > dimensions)
    throw JsonError(fmt::format("{} sizes and {} strides, expected as many, at most {}",
                                meta.sizes.size(), meta.strides.size(), dimensions));
  meta.offset = size_of_symbols(json.at("storage_offset")).value;
  meta.requires_grad = boolean_of(json.at("requires_grad"));
  meta.device = device_of(json.at("device"));
  require_strided(json.at("layout"));
  return meta;
}

bool is_path_of_modules(std::string_view name) {
  constexpr int64_t kMostBytes = 1024, kMostModules = 64;  // of PyTorch's they are far below
  if (std::ssize(name) > kMostBytes || std::ranges::count(name, '.') > kMostModules) return false;
  return !name.empty() && name.front() != '.' && name.back() != '.' && name.find("..") == name.npos;
}

}  // namespace detail
}  // namespace tutti::pt2
