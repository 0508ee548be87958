/// The slow, obvious version of every reduction: one element at a time, conversions by arithmetic,
/// the tree by recursion. Shares no line with the kernels.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "tutti/base/dtype.h"
#include "tutti/comm/engine/engine.h"

namespace tutti::test {

/// The value of a 16-bit float with `exponent_bits`: float16 has 5, bfloat16 8.
inline double value_of_16(uint16_t bits, int exponent_bits) {
  const int mantissa_bits = 15 - exponent_bits;
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const int exponent = (bits & 0x7fff) >> mantissa_bits;
  const double mantissa = bits & ((1 << mantissa_bits) - 1);
  const double sign = bits & 0x8000 ? -1 : 1;
  if (exponent == (1 << exponent_bits) - 1)
    return mantissa != 0 ? std::numeric_limits<double>::quiet_NaN()
                         : sign * std::numeric_limits<double>::infinity();
  if (exponent == 0) return sign * std::ldexp(mantissa, 1 - bias - mantissa_bits);
  return sign * std::ldexp(mantissa + (1 << mantissa_bits), exponent - bias - mantissa_bits);
}

/// The nearest such float, ties to even, too large to infinity.
inline uint16_t nearest_16(double x, int exponent_bits) {
  const int mantissa_bits = 15 - exponent_bits;
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const uint16_t infinity = static_cast<uint16_t>(((1 << exponent_bits) - 1) << mantissa_bits);
  const uint16_t sign = std::signbit(x) ? 0x8000 : 0;
  if (std::isnan(x)) return static_cast<uint16_t>(infinity | 1 << (mantissa_bits - 1));
  const double size = std::fabs(x);
  if (size == 0) return sign;
  if (std::isinf(size)) return sign | infinity;
  const int exponent = std::max(std::ilogb(size), 1 - bias);
  const double steps = std::nearbyint(std::ldexp(size, mantissa_bits - exponent));  // exact scaling
  // Steps of a normal number carry the implied one; a carry moves into the exponent by itself.
  const double bits = steps + (exponent + bias - 1) * std::ldexp(1.0, mantissa_bits);
  return static_cast<uint16_t>(sign | (bits >= infinity ? infinity : static_cast<uint16_t>(bits)));
}

constexpr DType kAllDTypes[] = {DType::boolean, DType::uint8,   DType::int8,     DType::uint16,
                                DType::int16,   DType::uint32,  DType::int32,    DType::uint64,
                                DType::int64,   DType::float16, DType::bfloat16, DType::float32,
                                DType::float64};
constexpr ReduceOp kAllOps[] = {ReduceOp::sum,        ReduceOp::mean,       ReduceOp::min,
                                ReduceOp::max,        ReduceOp::product,    ReduceOp::bit_and,
                                ReduceOp::bit_or,     ReduceOp::bit_xor,    ReduceOp::logical_and,
                                ReduceOp::logical_or, ReduceOp::logical_xor};

/// Whether a reduction has a meaning.
inline bool is_defined(DType dtype, ReduceOp op) {
  if (op == ReduceOp::mean) return is_floating(dtype);
  const bool arithmetic =
      op == ReduceOp::sum || op == ReduceOp::min || op == ReduceOp::max || op == ReduceOp::product;
  return arithmetic || !is_floating(dtype);
}

/// Bit by bit, so that it wraps without a word about signs.
inline uint64_t oracle_product(uint64_t a, uint64_t b) {
  uint64_t product = 0;
  for (int bit = 0; bit < 64; ++bit)
    if (b >> bit & 1) product += a << bit;
  return product;
}

template <class A>
A oracle_integer(ReduceOp op, A a, A b) {
  const auto x = static_cast<uint64_t>(a), y = static_cast<uint64_t>(b);
  switch (op) {
    case ReduceOp::sum: return static_cast<A>(x + y);
    case ReduceOp::product: return static_cast<A>(oracle_product(x, y));
    case ReduceOp::min: return std::min(a, b);
    case ReduceOp::max: return std::max(a, b);
    case ReduceOp::bit_and: return static_cast<A>(x & y);
    case ReduceOp::bit_or: return static_cast<A>(x | y);
    case ReduceOp::bit_xor: return static_cast<A>(x ^ y);
    case ReduceOp::logical_and: return a && b;
    case ReduceOp::logical_or: return a || b;
    default: return !a != !b;
  }
}

inline bool oracle_bool(ReduceOp op, bool a, bool b) {
  switch (op) {
    case ReduceOp::sum:
    case ReduceOp::max:
    case ReduceOp::bit_or:
    case ReduceOp::logical_or: return a || b;
    case ReduceOp::bit_xor:
    case ReduceOp::logical_xor: return a != b;
    default: return a && b;
  }
}

template <class A>
A oracle_combine(ReduceOp op, A a, A b) {
  if constexpr (std::is_same_v<A, bool>) {
    return oracle_bool(op, a, b);
  } else if constexpr (std::is_integral_v<A>) {
    return oracle_integer(op, a, b);
  } else {
    if (op == ReduceOp::sum || op == ReduceOp::mean) return a + b;
    if (op == ReduceOp::product) return a * b;
    if (std::isnan(a) || std::isnan(b)) return std::numeric_limits<A>::quiet_NaN();
    if (a == 0 && b == 0) {
      const bool negative = op == ReduceOp::min ? std::signbit(a) || std::signbit(b)
                                                : std::signbit(a) && std::signbit(b);
      return negative ? -A{0} : A{0};
    }
    return op == ReduceOp::min ? std::min(a, b) : std::max(a, b);
  }
}

/// Combines leaves [begin, end): the largest power of two below the count left, the rest right.
template <class A>
A oracle_tree(ReduceOp op, const std::vector<A>& leaves, size_t begin, size_t end) {
  if (end - begin == 1) return static_cast<A>(leaves[begin]);
  size_t left = 1;
  while (left * 2 < end - begin) left *= 2;
  return oracle_combine(op, oracle_tree(op, leaves, begin, begin + left),
                        oracle_tree(op, leaves, begin + left, end));
}

template <class A>
A oracle_shape(ReduceOp op, const ReductionShape& shape, const std::vector<A>& leaves) {
  std::vector<A> hosts;
  size_t begin = 0;
  for (int count : shape.replicas_per_host()) {
    hosts.push_back(oracle_tree(op, leaves, begin, begin + static_cast<size_t>(count)));
    begin += static_cast<size_t>(count);
  }
  A total = oracle_tree(op, hosts, 0, hosts.size());
  if constexpr (!std::is_integral_v<A>)
    if (op == ReduceOp::mean) total /= static_cast<A>(leaves.size());
  return total;
}

using Bytes = std::vector<unsigned char>;

template <class Stored, class A, class Widen, class Narrow>
Bytes oracle_of(ReduceOp op, const ReductionShape& shape, const std::vector<Bytes>& inputs,
                Widen widen, Narrow narrow) {
  const size_t n = inputs[0].size() / sizeof(Stored);
  Bytes result(inputs[0].size());
  for (size_t i = 0; i < n; ++i) {
    std::vector<A> leaves;
    for (const auto& input : inputs) {
      Stored stored;
      std::memcpy(&stored, input.data() + i * sizeof stored, sizeof stored);
      leaves.push_back(widen(stored));
    }
    Stored total;
    if (inputs.size() == 1 && op >= ReduceOp::logical_and)
      total = narrow(static_cast<A>(leaves[0] != 0));
    else if (inputs.size() == 1)
      std::memcpy(&total, inputs[0].data() + i * sizeof total, sizeof total);
    else
      total = narrow(oracle_shape(op, shape, leaves));
    std::memcpy(result.data() + i * sizeof total, &total, sizeof total);
  }
  return result;
}

/// What reducing `inputs` (one a replica, all of one length) must give, byte for byte.
inline Bytes oracle(DType dtype, ReduceOp op, const ReductionShape& shape,
                    const std::vector<Bytes>& inputs) {
  const auto same = [](auto x) { return x; };
  const auto widen_16 = [&](int exponent_bits) {
    return [=](uint16_t x) { return static_cast<float>(value_of_16(x, exponent_bits)); };
  };
  const auto narrow_16 = [&](int exponent_bits) {
    return [=](float x) { return nearest_16(x, exponent_bits); };
  };
  const auto exact = [&]<class T>(T) { return oracle_of<T, T>(op, shape, inputs, same, same); };
  switch (dtype) {
    case DType::boolean: return exact(false);
    case DType::uint8: return exact(uint8_t{});
    case DType::int8: return exact(int8_t{});
    case DType::uint16: return exact(uint16_t{});
    case DType::int16: return exact(int16_t{});
    case DType::uint32: return exact(uint32_t{});
    case DType::int32: return exact(int32_t{});
    case DType::uint64: return exact(uint64_t{});
    case DType::int64: return exact(int64_t{});
    case DType::float32: return exact(float{});
    case DType::float64: return exact(double{});
    case DType::bfloat16:
      return oracle_of<uint16_t, float>(op, shape, inputs, widen_16(8), narrow_16(8));
    case DType::float16: break;
  }
  return oracle_of<uint16_t, float>(op, shape, inputs, widen_16(5), narrow_16(5));
}

/// Ordinary values of a dtype, whose sums round: the same for the same (seed, rank).
inline Bytes ordinary_values(DType dtype, int64_t n, uint32_t seed, int rank) {
  std::mt19937 random(seed * 1000003u + static_cast<uint32_t>(rank));
  Bytes bytes(static_cast<size_t>(n * size_of(dtype)));
  for (int64_t i = 0; i < n; ++i) {
    const double value = (static_cast<double>(random()) / 4294967296.0 - 0.5) * 200;
    unsigned char* const to = bytes.data() + i * size_of(dtype);
    const auto put = [&](auto x) { std::memcpy(to, &x, sizeof x); };
    const uint64_t bits = uint64_t{random()} << 32 | random();
    switch (dtype) {
      case DType::float32: put(static_cast<float>(value)); break;
      case DType::float64: put(value); break;
      case DType::bfloat16: put(nearest_16(value, 8)); break;
      case DType::float16: put(nearest_16(value, 5)); break;
      case DType::boolean: put(static_cast<uint8_t>(bits & 1)); break;
      // One in eight is zero, so that logical operations see both.
      default: {
        const uint64_t number = bits % 8 == 0 ? 0 : bits >> 3;
        std::memcpy(to, &number, static_cast<size_t>(size_of(dtype)));
      }
    }
  }
  return bytes;
}

/// "" when equal, else the first element that differs. Any NaN equals any other NaN.
inline std::string first_difference(DType dtype, const void* got, const void* expected, int64_t n) {
  const auto step = size_of(dtype);
  const auto is_nan = [&](const unsigned char* at) {
    uint16_t bits;
    std::memcpy(&bits, at, 2);
    if (dtype == DType::float16) return std::isnan(value_of_16(bits, 5));
    if (dtype == DType::bfloat16) return std::isnan(value_of_16(bits, 8));
    float single;
    double whole;
    if (dtype == DType::float32) return std::memcpy(&single, at, 4), std::isnan(single);
    if (dtype == DType::float64) return std::memcpy(&whole, at, 8), std::isnan(whole);
    return false;
  };
  for (int64_t i = 0; i < n; ++i) {
    const auto* a = static_cast<const unsigned char*>(got) + i * step;
    const auto* b = static_cast<const unsigned char*>(expected) + i * step;
    if (std::memcmp(a, b, static_cast<size_t>(step)) == 0 || (is_nan(a) && is_nan(b))) continue;
    std::string words = "element " + std::to_string(i) + " of " + std::to_string(n) + ": got 0x";
    const auto hex = [&](const unsigned char* at) {
      constexpr char kDigits[] = "0123456789abcdef";
      for (auto k = step; k-- > 0;) words += {kDigits[at[k] >> 4], kDigits[at[k] & 15]};
    };
    hex(a);
    words += ", expected 0x";
    hex(b);
    return words;
  }
  return "";
}

}  // namespace tutti::test
