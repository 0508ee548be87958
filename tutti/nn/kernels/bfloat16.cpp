// The kernels of bfloat16 layers, compiled once per instruction set (cmake/TuttiKernels.cmake).
// Loops over kLanes elements are plain C++ that the compiler vectorises. Sums are kLanes sums, of
// which element i goes to sum i mod kLanes, added up in a fixed order: the same bits by every set.
#include "tutti/nn/kernels/bfloat16.h"

namespace tutti::nn {
namespace {

using detail::ScoresShape;

constexpr int64_t kLanes = 16;

inline float widened(uint16_t x) { return __builtin_bit_cast(float, uint32_t{x} << 16); }

inline uint16_t rounded(float x) {
  const auto bits = __builtin_bit_cast(uint32_t, x);
  const uint32_t nearest = (bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16;
  const uint32_t quiet = (bits >> 16) | 0x40U;
  return static_cast<uint16_t>(x != x ? quiet : nearest);  // NOLINT(misc-redundant-expression): NaN
}

// exp(x) within 2 units in the last place for -87 <= x <= 87; beyond, that of the end; NaN stays.
// x = n ln 2 + r, |r| <= ln 2 / 2; the polynomial is that of Cephes' expf (Moshier 1989).
inline float exponential(float given) {
  constexpr float kEnd = 87, kLog2E = 1.44269504F, kHigh = 0.693359375F, kLow = -2.12194440e-4F;
  constexpr float kRound = 12582912;  // 1.5 * 2^23: added, it leaves whole numbers
  const float below = given > kEnd ? kEnd : given;
  const float x = below < -kEnd ? -kEnd : below;
  const float shifted = x * kLog2E + kRound;
  const float n = shifted - kRound;
  const float r = (x - n * kHigh) - n * kLow;
  float p = 1.9875691500e-4F;
  p = p * r + 1.3981999507e-3F;
  p = p * r + 8.3334519073e-3F;
  p = p * r + 4.1665795894e-2F;
  p = p * r + 1.6666665459e-1F;
  p = p * r + 5.0000001201e-1F;
  const float e = (p * (r * r) + r) + 1;
  const auto whole = __builtin_bit_cast(uint32_t, shifted) - __builtin_bit_cast(uint32_t, kRound);
  return e * __builtin_bit_cast(float, (whole + 127U) << 23);
}

constexpr float kRoot = 1.5957691216F;  // 2 sqrt(2 / pi)
constexpr float kCube = 0.044715F;

// x (1 + tanh u) / 2 = x / (1 + exp(-2 u)), u = sqrt(2 / pi) (x + kCube x^3).
inline float sigmoid_of(float x) {
  return 1 / (1 + exponential(-kRoot * (x + kCube * (x * x * x))));
}

inline float gelu_of(float x) {
  const float y = x * sigmoid_of(x);
  return x < -64 ? -0.0F : y;
}

inline float gelu_slope(float x) {
  const float s = sigmoid_of(x);
  const float slope = s + x * (s * (1 - s)) * (kRoot * (1 + 3 * kCube * (x * x)));
  // Where x^3 overflows, s is 0 or 1 and the product of the two 0 times infinity.
  return x > 64 ? 1.0F : (x < -64 ? 0.0F : slope);
}

void gelu(const uint16_t* x, uint16_t* y, int64_t count) {
  for (int64_t i = 0; i < count; ++i) y[i] = rounded(gelu_of(widened(x[i])));
}

void gelu_gradient(const uint16_t* gradient, const uint16_t* x, uint16_t* dx, int64_t count) {
  for (int64_t i = 0; i < count; ++i)
    dx[i] = rounded(widened(gradient[i]) * gelu_slope(widened(x[i])));
}

inline float total(const float* lanes) {
  float halves[kLanes / 2];
  for (int64_t i = 0; i < kLanes / 2; ++i) halves[i] = lanes[i] + lanes[i + kLanes / 2];
  float sum = 0;
  for (int64_t i = 0; i < kLanes / 2; ++i) sum += halves[i];
  return sum;
}

inline int64_t seen_by(const ScoresShape& shape, int64_t query) {
  return shape.causal && query + 1 < shape.keys ? query + 1 : shape.keys;
}

inline float largest_of(const uint16_t* x, int64_t count) {
  float lanes[kLanes];
  const float first = widened(x[0]);
  for (int64_t i = 0; i < kLanes; ++i) lanes[i] = first;
  int64_t k = 0;
  for (; k + kLanes <= count; k += kLanes)
    for (int64_t i = 0; i < kLanes; ++i) {
      const float value = widened(x[k + i]);
      lanes[i] = value > lanes[i] ? value : lanes[i];
    }
  for (int64_t i = 0; k + i < count; ++i) {
    const float value = widened(x[k + i]);
    lanes[i] = value > lanes[i] ? value : lanes[i];
  }
  float largest = lanes[0];
  for (int64_t i = 1; i < kLanes; ++i) largest = lanes[i] > largest ? lanes[i] : largest;
  return largest;
}

void softmax_of(uint16_t* row, int64_t seen, int64_t keys, float scale, float* __restrict scratch) {
  const float largest = largest_of(row, seen);
  float sums[kLanes] = {};
  int64_t k = 0;
  for (; k + kLanes <= seen; k += kLanes)
    for (int64_t i = 0; i < kLanes; ++i) {
      const float e = exponential(scale * (widened(row[k + i]) - largest));
      scratch[k + i] = e;
      sums[i] += e;
    }
  for (int64_t i = 0; k + i < seen; ++i) {
    const float e = exponential(scale * (widened(row[k + i]) - largest));
    scratch[k + i] = e;
    sums[i] += e;
  }
  const float share = 1 / total(sums);
  for (k = 0; k < seen; ++k) row[k] = rounded(scratch[k] * share);
  for (k = seen; k < keys; ++k) row[k] = 0;
}

void softmax(const ScoresShape& shape, uint16_t* scores, float* scratch) {
  for (int64_t matrix = 0; matrix < shape.matrices; ++matrix)
    for (int64_t query = 0; query < shape.queries; ++query) {
      softmax_of(scores, seen_by(shape, query), shape.keys, shape.scale, scratch);
      scores += shape.keys;
    }
}

void softmax_gradient_of(const uint16_t* p, uint16_t* __restrict gradient, int64_t seen,
                         int64_t keys, float scale) {
  float sums[kLanes] = {};
  int64_t k = 0;
  for (; k + kLanes <= seen; k += kLanes)
    for (int64_t i = 0; i < kLanes; ++i) sums[i] += widened(p[k + i]) * widened(gradient[k + i]);
  for (int64_t i = 0; k + i < seen; ++i) sums[i] += widened(p[k + i]) * widened(gradient[k + i]);
  const float mean = total(sums);
  for (k = 0; k < seen; ++k)
    gradient[k] = rounded(scale * (widened(p[k]) * (widened(gradient[k]) - mean)));
  for (k = seen; k < keys; ++k) gradient[k] = 0;
}

void softmax_gradient(const ScoresShape& shape, const uint16_t* p, uint16_t* gradient) {
  for (int64_t matrix = 0; matrix < shape.matrices; ++matrix)
    for (int64_t query = 0; query < shape.queries; ++query) {
      softmax_gradient_of(p, gradient, seen_by(shape, query), shape.keys, shape.scale);
      p += shape.keys;
      gradient += shape.keys;
    }
}

}  // namespace

namespace TUTTI_KERNEL_VARIANT {
constinit const detail::Bfloat16Kernels bfloat16_kernels{.gelu = gelu,
                                                         .gelu_gradient = gelu_gradient,
                                                         .softmax = softmax,
                                                         .softmax_gradient = softmax_gradient};
}  // namespace TUTTI_KERNEL_VARIANT

}  // namespace tutti::nn
