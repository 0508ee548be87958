/// What operators are told, as JSON: their fields by name, and back. Not for users.
/// Thread rule: pure functions.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "tutti/base/json.h"
#include "tutti/base/suggest.h"
#include "tutti/nn/ops.h"

namespace tutti::nn::detail {

/// What no number of a graph from a file may be above: products of two still fit into 64 bits.
inline constexpr int64_t kMostOfGraph = (int64_t{1} << 31) - 1;

inline OrderedJson field_json(int64_t value) { return value; }
inline OrderedJson field_json(double value) { return value; }
inline OrderedJson field_json(bool value) { return value; }
inline OrderedJson field_json(Size2d size) { return OrderedJson::array({size.height, size.width}); }
inline OrderedJson field_json(const std::string& words) { return words; }
/// JsonError: no file has a function of the program's own.
OrderedJson field_json(const std::shared_ptr<const LambdaFunction>& function);
inline OrderedJson field_json(DType dtype) { return std::string(name_of(dtype)); }
inline OrderedJson field_json(const Shape& shape) {
  OrderedJson sides = OrderedJson::array();
  for (const int64_t side : shape) sides.push_back(side);
  return sides;
}

/// Each throws JsonError, with what was got and expected.
void read_field(const Json& json, int64_t& to);
void read_field(const Json& json, double& to);
void read_field(const Json& json, bool& to);
void read_field(const Json& json, Size2d& to);
void read_field(const Json& json, DType& to);
void read_field(const Json& json, std::string& to);
void read_field(const Json& json, std::shared_ptr<const LambdaFunction>& to);
void read_field(const Json& json, Shape& to);

/// JsonError for a member that is not among them.
void refuse_others(const Json& json, const std::vector<std::string>& known);

template <class O, class Fields>
OrderedJson fields_json(const O& op, const Fields& fields) {
  OrderedJson json = OrderedJson::object();
  std::apply(
      [&](const auto&... field) { ((json[field.name] = field_json(op.*field.member)), ...); },
      fields);
  return json;
}

/// An operator all of whose fields are said, and no others. Throws JsonError.
template <class O, class Fields>
O op_of_fields(const Json& json, const Fields& fields) {
  O op{};
  std::apply(
      [&](const auto&... field) {
        refuse_others(json, {std::string(field.name)...});
        [[maybe_unused]] const auto read = [&](std::string_view name, auto& to) {
          try {
            read_field(json.at(name), to);
          } catch (const JsonError& error) {
            throw JsonError(fmt::format("\"{}\": {}", name, error.what()));
          }
        };
        (read(field.name, op.*field.member), ...);
      },
      fields);
  return op;
}

}  // namespace tutti::nn::detail
