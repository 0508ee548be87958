// Reduction kernels, compiled once per instruction set (cmake/TuttiKernels.cmake). Every element
// goes through the same operations in vector body and tail, so results do not depend on the
// instruction set or on where a slice is cut. Conversions of 16-bit types are integer arithmetic
// for that reason.
//
// Loops carry `ivdep`: an out may be exactly one of the inputs, so that iteration i touches only
// index i of each, and the compiler may vectorise without a check for overlap.
#include "tutti/comm/engine/kernels/reduce.h"

namespace tutti::comm::TUTTI_KERNEL_VARIANT {
namespace {

using detail::ReduceKernels;

template <class To, class From>
inline __attribute__((always_inline)) To bits_as(From from) {
  return __builtin_bit_cast(To, from);
}

template <class T>
struct Plain {
  using Stored = T;
  using Accumulator = T;
  static Accumulator widen(Stored x) { return x; }
  static Stored narrow(Accumulator x) { return x; }
};

struct BFloat16 {
  using Stored = uint16_t;
  using Accumulator = float;
  static float widen(uint16_t x) { return bits_as<float>(static_cast<uint32_t>(x) << 16); }
  // To nearest even; NaN stays NaN (rounding its mantissa up could make it infinite).
  static uint16_t narrow(float x) {
    const uint32_t bits = bits_as<uint32_t>(x);
    const uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    const uint32_t quiet = (bits >> 16) | 0x40;
    return static_cast<uint16_t>((bits & 0x7fffffff) > 0x7f800000 ? quiet : rounded);
  }
};

struct Float16 {
  using Stored = uint16_t;
  using Accumulator = float;
  static float widen(uint16_t x) {
    const uint32_t moved = static_cast<uint32_t>(x & 0x7fff) << 13;
    const uint32_t exponent = moved & 0x0f800000;
    const uint32_t normal = moved + (112u << 23);
    const uint32_t special = moved + (224u << 23);  // infinity and NaN
    // A subnormal gets an implied one, which a float subtraction takes off again, exactly.
    const float shifted = bits_as<float>(moved + (113u << 23)) - bits_as<float>(113u << 23);
    const uint32_t bits = exponent == 0x0f800000 ? special
                          : exponent == 0        ? bits_as<uint32_t>(shifted)
                                                 : normal;
    return bits_as<float>(bits | (static_cast<uint32_t>(x & 0x8000) << 16));
  }
  // To nearest even, overflow to infinity, NaN stays NaN.
  static uint16_t narrow(float x) {
    const uint32_t all = bits_as<uint32_t>(x);
    const uint32_t bits = all & 0x7fffffff;
    const uint32_t special = bits > 0x7f800000 ? 0x7e00 : 0x7c00;
    // Below 2^-14: adding 0.5 aligns the mantissa so that the float addition does the rounding.
    const uint32_t subnormal =
        bits_as<uint32_t>(bits_as<float>(bits) + bits_as<float>(126u << 23)) - (126u << 23);
    const uint32_t normal = (bits - (112u << 23) + 0xfff + ((bits >> 13) & 1)) >> 13;
    const uint32_t half = bits >= (143u << 23) ? special : bits < (113u << 23) ? subnormal : normal;
    return static_cast<uint16_t>(half | ((all >> 16) & 0x8000));
  }
};

template <class T>
constexpr bool kIsFloating = false;
template <>
constexpr bool kIsFloating<float> = true;
template <>
constexpr bool kIsFloating<double> = true;

// Integers wrap, as unsigned arithmetic of at least 32 bits does.
template <class T>
struct Wrapping {
  using Type = uint64_t;
};
template <class T>
  requires(sizeof(T) <= 4)
struct Wrapping<T> {
  using Type = uint32_t;
};

template <class T>
inline T add(T a, T b) {
  if constexpr (kIsFloating<T>) return a + b;
  using U = typename Wrapping<T>::Type;
  return static_cast<T>(static_cast<U>(a) + static_cast<U>(b));
}

template <class T>
inline T multiply(T a, T b) {
  if constexpr (kIsFloating<T>) return a * b;
  using U = typename Wrapping<T>::Type;
  return static_cast<T>(static_cast<U>(a) * static_cast<U>(b));
}

// Extremes of floats do not depend on the order of their operands: any NaN gives the one quiet NaN,
// and of two zeros min takes the negative one, max the positive one (equal numbers differ in
// nothing but the sign bit of zero, so or-ing or and-ing their bits chooses it).
template <bool kMinimum, class T, class Bits>
inline T extreme_float(T a, T b, Bits quiet_nan) {
  const Bits a_bits = bits_as<Bits>(a);
  const Bits b_bits = bits_as<Bits>(b);
  const Bits equal = kMinimum ? (a_bits | b_bits) : (a_bits & b_bits);
  const Bits a_wins = kMinimum ? (a < b ? a_bits : quiet_nan) : (a > b ? a_bits : quiet_nan);
  const Bits b_or = kMinimum ? (b < a ? b_bits : a_wins) : (b > a ? b_bits : a_wins);
  return bits_as<T>(a == b ? equal : b_or);
}

template <bool kMinimum>
inline float extreme(float a, float b) {
  return extreme_float<kMinimum>(a, b, uint32_t{0x7fc00000});
}
template <bool kMinimum>
inline double extreme(double a, double b) {
  return extreme_float<kMinimum>(a, b, uint64_t{0x7ff8000000000000});
}
template <bool kMinimum, class T>
inline T extreme(T a, T b) {
  return (kMinimum ? a < b : a > b) ? a : b;
}

struct Sum {
  template <class A> static A combine(A a, A b) { return add(a, b); }
  template <class A> static A finish(A a, A) { return a; }
};
struct Mean : Sum {
  template <class A> static A finish(A a, A replicas) { return a / replicas; }
};
struct Min {
  template <class A> static A combine(A a, A b) { return extreme<true>(a, b); }
  template <class A> static A finish(A a, A) { return a; }
};
struct Max {
  template <class A> static A combine(A a, A b) { return extreme<false>(a, b); }
  template <class A> static A finish(A a, A) { return a; }
};

struct Product {
  template <class A> static A combine(A a, A b) { return multiply(a, b); }
  template <class A> static A finish(A a, A) { return a; }
};
struct BitAnd {
  template <class A> static A combine(A a, A b) { return static_cast<A>(a & b); }
  template <class A> static A finish(A a, A) { return a; }
};
struct BitOr {
  template <class A> static A combine(A a, A b) { return static_cast<A>(a | b); }
  template <class A> static A finish(A a, A) { return a; }
};
struct BitXor {
  template <class A> static A combine(A a, A b) { return static_cast<A>(a ^ b); }
  template <class A> static A finish(A a, A) { return a; }
};
// Nonzero is true. A lone input becomes 0 or 1 in finish().
struct Logical {
  template <class A> static A finish(A a, A) { return static_cast<A>(a != 0); }
};
struct LogicalAnd : Logical {
  template <class A> static A combine(A a, A b) { return static_cast<A>((a != 0) & (b != 0)); }
};
struct LogicalOr : Logical {
  template <class A> static A combine(A a, A b) { return static_cast<A>((a | b) != 0); }
};
struct LogicalXor : Logical {
  template <class A> static A combine(A a, A b) { return static_cast<A>((a != 0) != (b != 0)); }
};

template <class Type, class Op, int kInputs, int kOuts>
void fused(const void* const* inputs, void* const* outs, int64_t n) {
  using Stored = typename Type::Stored;
  using A = typename Type::Accumulator;
  const auto* in0 = static_cast<const Stored*>(inputs[0]);
  const auto* in1 = static_cast<const Stored*>(inputs[1]);
  const auto* in2 = static_cast<const Stored*>(inputs[kInputs > 2 ? 2 : 0]);
  const auto* in3 = static_cast<const Stored*>(inputs[kInputs > 3 ? 3 : 0]);
  auto* out0 = static_cast<Stored*>(outs[0]);
  auto* out1 = static_cast<Stored*>(outs[kOuts > 1 ? 1 : 0]);
  auto* out2 = static_cast<Stored*>(outs[kOuts > 2 ? 2 : 0]);
  auto* out3 = static_cast<Stored*>(outs[kOuts > 3 ? 3 : 0]);
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) {
    A total = Op::combine(Type::widen(in0[i]), Type::widen(in1[i]));
    if constexpr (kInputs == 3) total = Op::combine(total, Type::widen(in2[i]));
    if constexpr (kInputs == 4)
      total = Op::combine(total, Op::combine(Type::widen(in2[i]), Type::widen(in3[i])));
    const Stored result = Type::narrow(Op::finish(total, static_cast<A>(kInputs)));
    out0[i] = result;
    if constexpr (kOuts > 1) out1[i] = result;
    if constexpr (kOuts > 2) out2[i] = result;
    if constexpr (kOuts > 3) out3[i] = result;
  }
}

template <class Type>
void load(void* accumulator, const void* input, int64_t n) {
  auto* to = static_cast<typename Type::Accumulator*>(accumulator);
  const auto* from = static_cast<const typename Type::Stored*>(input);
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) to[i] = Type::widen(from[i]);
}

template <class Type, class Op>
void add_input(void* accumulator, const void* input, int64_t n) {
  auto* to = static_cast<typename Type::Accumulator*>(accumulator);
  const auto* from = static_cast<const typename Type::Stored*>(input);
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) to[i] = Op::combine(to[i], Type::widen(from[i]));
}

template <class Type, class Op>
void add_accumulator(void* accumulator, const void* other, int64_t n) {
  auto* to = static_cast<typename Type::Accumulator*>(accumulator);
  const auto* from = static_cast<const typename Type::Accumulator*>(other);
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) to[i] = Op::combine(to[i], from[i]);
}

template <class Type, class Op>
void store(void* out, const void* accumulator, int64_t n, int64_t replicas) {
  using A = typename Type::Accumulator;
  auto* to = static_cast<typename Type::Stored*>(out);
  const auto* from = static_cast<const A*>(accumulator);
  const A divisor = static_cast<A>(replicas);
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) to[i] = Type::narrow(Op::finish(from[i], divisor));
}

// By way of accumulators in L1: what suffices for all but the usual types and operations.
template <class Type, class Op>
constexpr ReduceKernels in_blocks() {
  return {{}, {}, load<Type>, add_input<Type, Op>, add_accumulator<Type, Op>, store<Type, Op>};
}

template <class Type, class Op>
constexpr ReduceKernels in_registers() {
  ReduceKernels kernels = in_blocks<Type, Op>();
  kernels.to_one[0] = fused<Type, Op, 2, 1>;
  kernels.to_one[1] = fused<Type, Op, 3, 1>;
  kernels.to_one[2] = fused<Type, Op, 4, 1>;
  kernels.to_all[0] = fused<Type, Op, 2, 2>;
  kernels.to_all[1] = fused<Type, Op, 3, 3>;
  kernels.to_all[2] = fused<Type, Op, 4, 4>;
  return kernels;
}

using Row = ReduceKernels[detail::kReduceColumns];

template <class Type>
constexpr void fill_floating(Row& row) {
  row[detail::kSum] = in_registers<Type, Sum>();
  row[detail::kMean] = in_registers<Type, Mean>();
  row[detail::kMin] = in_registers<Type, Min>();
  row[detail::kMax] = in_registers<Type, Max>();
  row[detail::kProduct] = in_blocks<Type, Product>();
}

template <class Unsigned>
constexpr void fill_logical(Row& row) {
  row[detail::kLogicalAnd] = in_blocks<Plain<Unsigned>, LogicalAnd>();
  row[detail::kLogicalOr] = in_blocks<Plain<Unsigned>, LogicalOr>();
  row[detail::kLogicalXor] = in_blocks<Plain<Unsigned>, LogicalXor>();
}

// Signed and unsigned integers of a width differ in order alone: the rest is one kernel.
template <class Unsigned>
constexpr void fill_integers(Row& row) {
  row[detail::kSum] = sizeof(Unsigned) >= 4 ? in_registers<Plain<Unsigned>, Sum>()
                                            : in_blocks<Plain<Unsigned>, Sum>();
  row[detail::kProduct] = in_blocks<Plain<Unsigned>, Product>();
  row[detail::kBitAnd] = in_blocks<Plain<Unsigned>, BitAnd>();
  row[detail::kBitOr] = in_blocks<Plain<Unsigned>, BitOr>();
  row[detail::kBitXor] = in_blocks<Plain<Unsigned>, BitXor>();
  fill_logical<Unsigned>(row);
}

template <class Unsigned, class Integer>
constexpr void fill_integer(Row& row) {
  fill_integers<Unsigned>(row);
  row[detail::kMin] = in_blocks<Plain<Integer>, Min>();
  row[detail::kMax] = in_blocks<Plain<Integer>, Max>();
}

template <class Unsigned, class Integer>
constexpr void fill_usual_integer(Row& row) {
  fill_integers<Unsigned>(row);
  row[detail::kMin] = in_registers<Plain<Integer>, Min>();
  row[detail::kMax] = in_registers<Plain<Integer>, Max>();
}

// Every operation on truth values is a logical one.
constexpr void fill_bool(Row& row) {
  fill_logical<uint8_t>(row);
  row[detail::kProduct] = row[detail::kMin] = row[detail::kBitAnd] = row[detail::kLogicalAnd];
  row[detail::kSum] = row[detail::kMax] = row[detail::kBitOr] = row[detail::kLogicalOr];
  row[detail::kBitXor] = row[detail::kLogicalXor];
}

constexpr detail::ReduceTable make_table() {
  detail::ReduceTable table{};
  auto& rows = table.kernels;
  fill_bool(rows[detail::kBool]);
  fill_integer<uint8_t, uint8_t>(rows[detail::kUint8]);
  fill_integer<uint8_t, int8_t>(rows[detail::kInt8]);
  fill_integer<uint16_t, uint16_t>(rows[detail::kUint16]);
  fill_integer<uint16_t, int16_t>(rows[detail::kInt16]);
  fill_integer<uint32_t, uint32_t>(rows[detail::kUint32]);
  fill_usual_integer<uint32_t, int32_t>(rows[detail::kInt32]);
  fill_integer<uint64_t, uint64_t>(rows[detail::kUint64]);
  fill_usual_integer<uint64_t, int64_t>(rows[detail::kInt64]);
  fill_floating<Float16>(rows[detail::kFloat16]);
  fill_floating<BFloat16>(rows[detail::kBFloat16]);
  fill_floating<Plain<float>>(rows[detail::kFloat32]);
  fill_floating<Plain<double>>(rows[detail::kFloat64]);
  return table;
}

}  // namespace

extern const detail::ReduceTable reduce_table;
constinit const detail::ReduceTable reduce_table = make_table();

}  // namespace tutti::comm::TUTTI_KERNEL_VARIANT
