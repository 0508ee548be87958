// Rules of what works element by element, and of what moves elements. At most one argument of a
// call adds instructions: the order of those of two would be the compiler's choice.
#include <algorithm>
#include <numbers>

#include "tutti/hlo/gradient_rules.h"
#include "tutti/hlo/ops.h"

namespace tutti::hlo {
namespace {

Value zeros_like(Value a) { return constant(a.program(), a.type(), 0); }

// To the chosen one of two. Where they are equal each gets half, but beside a number nothing: a
// relu's gradient is 0 at 0.
Value gradient_of_extreme(const BackwardStep& step, size_t which) {
  const Value mine = step.operand(which);
  const Value other = step.operand(1 - which);
  const bool largest = step.i.op == Op::maximum;
  const Value nothing = zeros_like(mine);
  if (step.program().instruction(other.number()).op == Op::constant) {
    const Value chosen = compare(mine, largest ? Comparison::gt : Comparison::lt, other);
    return select(chosen, step.incoming, nothing);
  }
  const Value half = step.incoming * 0.5;
  const Value shared = select(compare(mine, Comparison::eq, other), half, step.incoming);
  const Value lost = compare(mine, largest ? Comparison::lt : Comparison::gt, other);
  return select(lost, nothing, shared);
}

Value gradient_of_abs(Value a, Value incoming) {
  const Value nothing = zeros_like(a);
  const Value opposite = -incoming;
  const Value below = select(compare(a, Comparison::lt, 0), opposite, nothing);
  return select(compare(a, Comparison::gt, 0), incoming, below);
}

Value gradient_of_power(Value a, double exponent, Value incoming) {
  if (exponent == 0) return zeros_like(a);
  return incoming * (power(a, exponent - 1) * exponent);
}

// Of one operand.
Value gradient_of_function(const BackwardStep& step) {
  const Value a = step.operand(0);
  const Value y = step.result;
  const Value g = step.incoming;
  switch (step.i.op) {
    case Op::negate: return -g;
    case Op::exp: return g * y;
    case Op::log: return g / a;
    case Op::sqrt: return g * 0.5 / y;
    case Op::rsqrt: return g * (y * y * y * -0.5);
    case Op::tanh: return g * (1 - y * y);
    case Op::sigmoid: return g * (y * (1 - y));
    case Op::erf: return g * (exp(-(a * a)) * (2 * std::numbers::inv_sqrtpi));
    case Op::abs: return gradient_of_abs(a, g);
    default: return gradient_of_power(a, step.i.number, g);
  }
}

// Sums over what was repeated.
Value gradient_of_broadcast(Value a, const std::vector<int64_t>& dimensions, Value incoming) {
  std::vector<int64_t> repeated;
  for (int64_t d = 0; d < int64_t(incoming.shape().size()); ++d) {
    const auto of_a = std::ranges::find(dimensions, d);
    if (of_a == dimensions.end() ||
        a.shape()[size_t(of_a - dimensions.begin())] != incoming.shape()[size_t(d)])
      repeated.push_back(d);
  }
  return reshape(reduce_sum(incoming, repeated), a.shape());
}

Value gradient_of_reduce_sum(Value a, const std::vector<int64_t>& dimensions, Value incoming) {
  std::vector<int64_t> left;
  for (int64_t d = 0; d < int64_t(a.shape().size()); ++d)
    if (std::ranges::find(dimensions, d) == dimensions.end()) left.push_back(d);
  return broadcast(incoming, a.shape(), left);
}

Value gradient_of_transpose(const std::vector<int64_t>& order, Value incoming) {
  std::vector<int64_t> back(order.size());
  for (size_t k = 0; k < order.size(); ++k) back[size_t(order[k])] = int64_t(k);
  return transpose(incoming, back);
}

Value gradient_of_slice(Value a, const Instruction& i, Value incoming) {
  Shape after, between;
  for (size_t k = 0; k < i.begin.size(); ++k) {
    const int64_t taken = incoming.shape()[k];
    between.push_back(i.step[k] - 1);
    after.push_back(a.shape()[k] - i.begin[k] - (taken == 0 ? 0 : (taken - 1) * i.step[k] + 1));
  }
  return pad(incoming, i.begin, after, between);
}

Value gradient_of_pad(const Instruction& i, Value incoming) {
  Shape before, after, stride;
  for (size_t k = 0; k < i.begin.size(); ++k) {
    before.push_back(-i.begin[k]);
    after.push_back(-i.end[k]);
    stride.push_back(i.step[k] + 1);
  }
  const Shape none(i.begin.size(), 0);
  const Value inner = pad(incoming, before, after, none);
  return slice(inner, none, inner.shape(), stride);
}

}  // namespace

Value gradient_of_elementwise(const BackwardStep& step, size_t which) {
  const Value g = step.incoming;
  switch (step.i.op) {
    case Op::add: return g;
    case Op::subtract: return which == 0 ? g : -g;
    case Op::multiply: return g * step.operand(1 - which);
    case Op::divide: return which == 0 ? g / step.operand(1) : -(g * step.result) / step.operand(1);
    case Op::maximum:
    case Op::minimum: return gradient_of_extreme(step, which);
    case Op::select: {
      const Value nothing = zeros_like(g);
      return which == 1 ? select(step.operand(0), g, nothing) : select(step.operand(0), nothing, g);
    }
    default: return gradient_of_function(step);
  }
}

Value gradient_of_shape(const BackwardStep& step) {
  const Value a = step.operand(0);
  const Value g = step.incoming;
  switch (step.i.op) {
    case Op::convert: return convert(g, a.dtype());
    case Op::reshape: return reshape(g, a.shape());
    case Op::broadcast: return gradient_of_broadcast(a, step.i.dimensions, g);
    case Op::transpose: return gradient_of_transpose(step.i.dimensions, g);
    case Op::slice: return gradient_of_slice(a, step.i, g);
    case Op::pad: return gradient_of_pad(step.i, g);
    case Op::reduce_sum: return gradient_of_reduce_sum(a, step.i.dimensions, g);
    default: return reverse(g, step.i.dimensions);
  }
}

Value gradient_of_concatenate(const BackwardStep& step, size_t which) {
  const auto dimension = size_t(step.i.dimensions[0]);
  Shape begin(step.i.type.shape.size(), 0);
  Shape end = step.i.type.shape;
  for (size_t k = 0; k < which; ++k) begin[dimension] += step.operand(k).shape()[dimension];
  end[dimension] = begin[dimension] + step.operand(which).shape()[dimension];
  return slice(step.incoming, begin, end);
}

// In equal parts to all that are as large as the largest.
Value gradient_of_reduce_max(const BackwardStep& step) {
  const Value a = step.operand(0);
  const auto& dimensions = step.i.dimensions;
  const Value largest = gradient_of_reduce_sum(a, dimensions, step.result);
  const Value chosen = convert(compare(a, Comparison::eq, largest), a.dtype());
  const Value part = step.incoming / reduce_sum(chosen, dimensions);
  return chosen * gradient_of_reduce_sum(a, dimensions, part);
}

}  // namespace tutti::hlo
