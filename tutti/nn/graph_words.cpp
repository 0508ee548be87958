// What a graph computes, in words.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <memory>
#include <string>
#include <type_traits>
#include <vector>

#include "tutti/nn/detail/operator_fields.h"
#include "tutti/nn/detail/value_types.h"
#include "tutti/nn/graph.h"

namespace tutti::nn {
namespace {

std::string words_of(const Shape& shape) { return to_string(shape); }
std::string words_of(Size2d size) { return fmt::format("{}x{}", size.height, size.width); }
std::string words_of(const std::string& words) { return words; }
std::string words_of(DType dtype) { return std::string(name_of(dtype)); }
// Two functions cannot be compared: what they are called is.
std::string words_of(const std::shared_ptr<const LambdaFunction>& function) {
  const DType dtype = function ? detail::dtype_of(*function) : DType::float32;
  return dtype == DType::float32 ? "function" : "function of " + words_of(dtype);
}
template <class Number>
  requires std::is_arithmetic_v<Number>
std::string words_of(Number number) {
  return fmt::format("{}", number);
}

template <class... Fields>
std::string joined(const Fields&... fields) {
  return fmt::format("{}", fmt::join(std::vector<std::string>{words_of(fields)...}, ", "));
}

template <class T>
std::string fields_of(const T& op) {
  constexpr size_t kFields = detail::num_fields<T>();
  static_assert(kFields <= detail::kMostFields, "a case more");
  if constexpr (kFields == 0) {
    return "";
  } else if constexpr (kFields == 1) {
    const auto& [a] = op;
    return joined(a);
  } else if constexpr (kFields == 2) {
    const auto& [a, b] = op;
    return joined(a, b);
  } else if constexpr (kFields == 3) {
    const auto& [a, b, c] = op;
    return joined(a, b, c);
  } else if constexpr (kFields == 4) {
    const auto& [a, b, c, d] = op;
    return joined(a, b, c, d);
  } else if constexpr (kFields == 5) {
    const auto& [a, b, c, d, e] = op;
    return joined(a, b, c, d, e);
  } else if constexpr (kFields == 6) {
    const auto& [a, b, c, d, e, f] = op;
    return joined(a, b, c, d, e, f);
  } else {
    const auto& [a, b, c, d, e, f, g] = op;
    return joined(a, b, c, d, e, f, g);
  }
}

}  // namespace

std::string words_of(const Node& node) {
  std::vector<std::string> frozen;
  for (const Parameter& parameter : node.parameters)
    if (parameter.frozen) frozen.push_back(full_name(node, parameter));
  return fmt::format("{} = {}({}) of [{}]{}{}", node.name, kind_of(node.op),
                     std::visit([](const auto& op) { return fields_of(op); }, node.op),
                     fmt::join(node.inputs, ", "), frozen.empty() ? "" : ", frozen ",
                     fmt::join(frozen, ", "));
}

}  // namespace tutti::nn
