// Reduction kernels, compiled once per instruction set (cmake/TuttiKernels.cmake). Every element
// goes through the same operations in vector body and tail, so results do not depend on the
// instruction set or on where a slice is cut. Conversions of 16-bit types are integer arithmetic
// for that reason.
//
// Loops carry `ivdep`: an out may be exactly one of the inputs, so that iteration i touches only
// index i of each, and the compiler may vectorise without a check for overlap.
#include "tutti/comm/kernels/reduce.h"

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

// Sums of integers wrap, as unsigned arithmetic does.
inline float add(float a, float b) { return a + b; }
inline double add(double a, double b) { return a + b; }
inline int32_t add(int32_t a, int32_t b) {
  return static_cast<int32_t>(static_cast<uint32_t>(a) + static_cast<uint32_t>(b));
}
inline int64_t add(int64_t a, int64_t b) {
  return static_cast<int64_t>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b));
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
template <bool kMinimum>
inline int32_t extreme(int32_t a, int32_t b) {
  return (kMinimum ? a < b : a > b) ? a : b;
}
template <bool kMinimum>
inline int64_t extreme(int64_t a, int64_t b) {
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

template <class Type, class Op>
constexpr ReduceKernels kernels_of() {
  return {{fused<Type, Op, 2, 1>, fused<Type, Op, 3, 1>, fused<Type, Op, 4, 1>},
          {fused<Type, Op, 2, 2>, fused<Type, Op, 3, 3>, fused<Type, Op, 4, 4>},
          load<Type>,
          add_input<Type, Op>,
          add_accumulator<Type, Op>,
          store<Type, Op>};
}

}  // namespace

extern const detail::ReduceTable reduce_table;
const detail::ReduceTable reduce_table = {{
#define TUTTI_FLOATING(Type)                                                   \
  {kernels_of<Type, Sum>(), kernels_of<Type, Mean>(), kernels_of<Type, Min>(), \
   kernels_of<Type, Max>()}
#define TUTTI_INTEGER(Type) \
  {kernels_of<Type, Sum>(), ReduceKernels{}, kernels_of<Type, Min>(), kernels_of<Type, Max>()}
    TUTTI_FLOATING(Plain<float>),
    TUTTI_FLOATING(Plain<double>),
    TUTTI_FLOATING(BFloat16),
    TUTTI_FLOATING(Float16),
    TUTTI_INTEGER(Plain<int32_t>),
    TUTTI_INTEGER(Plain<int64_t>),
#undef TUTTI_FLOATING
#undef TUTTI_INTEGER
}};

}  // namespace tutti::comm::TUTTI_KERNEL_VARIANT
