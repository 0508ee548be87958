#include <fmt/format.h>

#include <cmath>
#include <utility>

#include "tutti/hlo/checks.h"
#include "tutti/hlo/instruction.h"
#include "tutti/hlo/ops.h"

namespace tutti::hlo {
namespace {

bool is_integer(DType dtype) { return !is_floating(dtype) && dtype != DType::boolean; }

bool holds(DType dtype, double number) {
  if (is_floating(dtype)) return true;
  if (dtype == DType::boolean) return number == 0 || number == 1;
  const bool negative = dtype == DType::int32 || dtype == DType::int64;
  const int bits = int(8 * size_of(dtype)) - (negative ? 1 : 0);
  const double beyond = std::ldexp(1.0, bits);
  return std::trunc(number) == number && number < beyond && number >= (negative ? -beyond : 0);
}

void require_same_type(std::string_view operation, Value a, Value b) {
  require_same_program(operation, a, b);
  if (a.type() != b.type()) refuse(operation, words_of({a, b}), "two of one type");
}

Value binary(Op op, std::string_view operation, Value a, Value b) {
  require_same_type(operation, a, b);
  require_numbers(operation, a);
  return a.program().add({.op = op, .type = a.type(), .operands = {a.number(), b.number()}});
}

Value bitwise(Op op, std::string_view operation, Value a, Value b) {
  require_same_type(operation, a, b);
  if (is_floating(a.dtype())) refuse(operation, words_of({a}), "integers or booleans");
  return a.program().add({.op = op, .type = a.type(), .operands = {a.number(), b.number()}});
}

Value shift(Op op, std::string_view operation, Value a, int bits) {
  if (!is_integer(a.dtype())) refuse(operation, words_of({a}), "integers");
  const int64_t width = 8 * size_of(a.dtype());
  if (bits < 0 || bits >= width)
    refuse(operation, fmt::format("{} bits of {}", bits, words_of({a})),
           fmt::format("0 to {}", width - 1));
  return a.program().add(
      {.op = op, .type = a.type(), .operands = {a.number()}, .number = double(bits)});
}

Value floating(Op op, std::string_view operation, Value a) {
  require_floating(operation, a);
  return a.program().add({.op = op, .type = a.type(), .operands = {a.number()}});
}

Value like(Value a, double number) { return constant(a.program(), a.type(), number); }

}  // namespace

Value constant(Program& program, Type type, double number) {
  require_type("constant", type);
  if (!holds(type.dtype, number))
    refuse("constant", fmt::format("{} for {}", number, to_string(type)), "a number that it holds");
  return program.add({.op = Op::constant, .type = std::move(type), .number = number});
}

Value operator+(Value a, Value b) { return binary(Op::add, "operator+", a, b); }
Value operator-(Value a, Value b) { return binary(Op::subtract, "operator-", a, b); }
Value operator*(Value a, Value b) { return binary(Op::multiply, "operator*", a, b); }
Value operator/(Value a, Value b) { return binary(Op::divide, "operator/", a, b); }
Value maximum(Value a, Value b) { return binary(Op::maximum, "maximum", a, b); }
Value minimum(Value a, Value b) { return binary(Op::minimum, "minimum", a, b); }

Value operator+(Value a, double b) { return a + like(a, b); }
Value operator-(Value a, double b) { return a - like(a, b); }
Value operator-(double a, Value b) { return like(b, a) - b; }
Value operator*(Value a, double b) { return a * like(a, b); }
Value operator/(Value a, double b) { return a / like(a, b); }
Value maximum(Value a, double b) { return maximum(a, like(a, b)); }
Value minimum(Value a, double b) { return minimum(a, like(a, b)); }

Value operator-(Value a) {
  require_numbers("operator-", a);
  return a.program().add({.op = Op::negate, .type = a.type(), .operands = {a.number()}});
}

Value exp(Value a) { return floating(Op::exp, "exp", a); }
Value log(Value a) { return floating(Op::log, "log", a); }
Value sqrt(Value a) { return floating(Op::sqrt, "sqrt", a); }
Value rsqrt(Value a) { return floating(Op::rsqrt, "rsqrt", a); }
Value tanh(Value a) { return floating(Op::tanh, "tanh", a); }
Value sigmoid(Value a) { return floating(Op::sigmoid, "sigmoid", a); }
Value abs(Value a) { return floating(Op::abs, "abs", a); }

Value erf(Value a) {
  require_floating("erf", a);
  // Its terms cancel out near 0: bfloat16 would leave no digit.
  if (a.dtype() == DType::bfloat16) return convert(erf(convert(a, DType::float32)), a.dtype());
  return floating(Op::erf, "erf", a);
}

Value power(Value a, double exponent) {
  require_floating("power", a);
  return a.program().add(
      {.op = Op::power, .type = a.type(), .operands = {a.number()}, .number = exponent});
}

Value bit_and(Value a, Value b) { return bitwise(Op::bit_and, "bit_and", a, b); }
Value bit_or(Value a, Value b) { return bitwise(Op::bit_or, "bit_or", a, b); }
Value bit_xor(Value a, Value b) { return bitwise(Op::bit_xor, "bit_xor", a, b); }
Value shift_left(Value a, int bits) { return shift(Op::shift_left, "shift_left", a, bits); }
Value shift_right(Value a, int bits) { return shift(Op::shift_right, "shift_right", a, bits); }

Value compare(Value a, Comparison how, Value b) {
  require_same_type("compare", a, b);
  return a.program().add({.op = Op::compare,
                          .type = {DType::boolean, a.shape()},
                          .operands = {a.number(), b.number()},
                          .how = how});
}

Value compare(Value a, Comparison how, double b) { return compare(a, how, like(a, b)); }

Value select(Value condition, Value yes, Value no) {
  require_same_type("select", yes, no);
  require_same_program("select", condition, yes);
  if (condition.type() != Type{DType::boolean, yes.shape()})
    refuse("select", words_of({condition, yes, no}), "a boolean condition of the same shape");
  return yes.program().add({.op = Op::select,
                            .type = yes.type(),
                            .operands = {condition.number(), yes.number(), no.number()}});
}

Value convert(Value a, DType dtype) {
  if (a.dtype() == dtype) return a;
  const Type type{dtype, a.shape()};
  require_type("convert", type);
  return a.program().add({.op = Op::convert, .type = type, .operands = {a.number()}});
}

Value stop_gradient(Value a) {
  return a.program().add({.op = Op::stop_gradient, .type = a.type(), .operands = {a.number()}});
}

}  // namespace tutti::hlo
