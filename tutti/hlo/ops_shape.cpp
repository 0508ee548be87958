#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "tutti/hlo/checks.h"
#include "tutti/hlo/instruction.h"
#include "tutti/hlo/ops.h"

namespace tutti::hlo {
namespace {

int64_t ceil_of(int64_t a, int64_t b) { return (a + b - 1) / b; }

// A number for each dimension.
void require_for_each(std::string_view operation, Value a, std::span<const int64_t> numbers) {
  if (numbers.size() != a.shape().size())
    refuse(operation, fmt::format("{} for {}", words_of(numbers), words_of({a})),
           fmt::format("{} numbers", a.shape().size()));
}

}  // namespace

Value iota(Program& program, Type type, int64_t dimension) {
  require_type("iota", type);
  require_dimensions("iota", std::vector{dimension}, type.shape.size());
  if (type.dtype == DType::boolean) refuse("iota", to_string(type), "numbers, not booleans");
  return program.add({.op = Op::iota, .type = std::move(type), .dimensions = {dimension}});
}

Value broadcast(Value a, Shape shape, std::vector<int64_t> dimensions) {
  const auto wrong = [&](std::string_view expected) {
    refuse("broadcast",
           fmt::format("{} to {} by dimensions {}", words_of({a}), words_of(shape),
                       words_of(dimensions)),
           expected);
  };
  Type type{a.dtype(), shape};
  require_type("broadcast", type);
  require_dimensions("broadcast", dimensions, shape.size());
  if (dimensions.size() != a.shape().size()) wrong("one for each dimension of the value");
  if (!std::ranges::is_sorted(dimensions)) wrong("them in increasing order");
  for (size_t i = 0; i < dimensions.size(); ++i)
    if (a.shape()[i] != 1 && a.shape()[i] != shape[size_t(dimensions[i])])
      wrong("sizes of 1, or the same in both");
  if (a.type() == type) return a;
  return a.program().add({.op = Op::broadcast,
                          .type = std::move(type),
                          .operands = {a.number()},
                          .dimensions = std::move(dimensions)});
}

Value reshape(Value a, Shape shape) {
  Type type{a.dtype(), std::move(shape)};
  require_type("reshape", type);
  if (num_elements(a.type()) != num_elements(type))
    refuse("reshape", fmt::format("{} to {}", words_of({a}), words_of(type.shape)),
           "as many elements in both");
  if (a.type() == type) return a;
  return a.program().add({.op = Op::reshape, .type = std::move(type), .operands = {a.number()}});
}

Value transpose(Value a, std::vector<int64_t> order) {
  require_for_each("transpose", a, order);
  require_dimensions("transpose", order, a.shape().size());
  if (std::ranges::is_sorted(order)) return a;
  Type type{a.dtype(), {}};
  for (const int64_t dimension : order) type.shape.push_back(a.shape()[size_t(dimension)]);
  return a.program().add({.op = Op::transpose,
                          .type = std::move(type),
                          .operands = {a.number()},
                          .dimensions = std::move(order)});
}

Value slice(Value a, Shape begin, Shape end, Shape stride) {
  if (stride.empty()) stride.assign(a.shape().size(), 1);
  for (const Shape* numbers : {&begin, &end, &stride}) require_for_each("slice", a, *numbers);
  Type type{a.dtype(), {}};
  for (size_t i = 0; i < begin.size(); ++i) {
    if (begin[i] < 0 || end[i] < begin[i] || end[i] > a.shape()[i] || stride[i] < 1)
      refuse("slice",
             fmt::format("{} from {} to {} by {}", words_of({a}), words_of(begin), words_of(end),
                         words_of(stride)),
             "0 <= begin <= end <= the size, and strides of 1 or more");
    type.shape.push_back(ceil_of(end[i] - begin[i], stride[i]));
  }
  if (a.type() == type) return a;
  return a.program().add({.op = Op::slice,
                          .type = std::move(type),
                          .operands = {a.number()},
                          .begin = std::move(begin),
                          .end = std::move(end),
                          .step = std::move(stride)});
}

Value pad(Value a, Shape before, Shape after, Shape between, double with) {
  for (const Shape* numbers : {&before, &after, &between}) require_for_each("pad", a, *numbers);
  Type type{a.dtype(), {}};
  for (size_t i = 0; i < before.size(); ++i) {
    const int64_t size = a.shape()[i];
    const int64_t spread = size == 0 ? 0 : size + (size - 1) * between[i];
    type.shape.push_back(before[i] + spread + after[i]);
    if (between[i] < 0 || type.shape.back() < 0)
      refuse("pad",
             fmt::format("{} with {} before, {} after, {} between", words_of({a}), words_of(before),
                         words_of(after), words_of(between)),
             "a size of 0 or more, and 0 or more between");
  }
  if (a.type() == type && std::ranges::all_of(before, [](int64_t n) { return n == 0; })) return a;
  return a.program().add({.op = Op::pad,
                          .type = std::move(type),
                          .operands = {a.number()},
                          .number = with,
                          .begin = std::move(before),
                          .end = std::move(after),
                          .step = std::move(between)});
}

Value concatenate(std::span<const Value> values, int64_t dimension) {
  if (values.empty()) refuse("concatenate", "no values", "one or more");
  Type type = values[0].type();
  require_dimensions("concatenate", std::vector{dimension}, type.shape.size());
  type.shape[size_t(dimension)] = 0;
  std::vector<int> operands;
  for (const Value value : values) {
    require_same_program("concatenate", values[0], value);
    Type rest = value.type();
    if (rest.shape.size() == type.shape.size())
      rest.shape[size_t(dimension)] = type.shape[size_t(dimension)];
    if (rest != type)
      refuse("concatenate", words_of({values[0], value}),
             fmt::format("one type but for dimension {}", dimension));
    type.shape[size_t(dimension)] += value.shape()[size_t(dimension)];
    operands.push_back(value.number());
  }
  if (values.size() == 1) return values[0];
  return values[0].program().add({.op = Op::concatenate,
                                  .type = std::move(type),
                                  .operands = std::move(operands),
                                  .dimensions = {dimension}});
}

Value reverse(Value a, std::vector<int64_t> dimensions) {
  require_dimensions("reverse", dimensions, a.shape().size());
  if (dimensions.empty()) return a;
  return a.program().add({.op = Op::reverse,
                          .type = a.type(),
                          .operands = {a.number()},
                          .dimensions = std::move(dimensions)});
}

}  // namespace tutti::hlo
