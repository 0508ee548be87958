// Kernels of gradient compression, compiled once per instruction set (cmake/TuttiKernels.cmake).
// No multiply-add is fused and every sum has a fixed order, so all copies give the same bits.
#include "tutti/comm/engine/kernels/code.h"

namespace tutti::comm::TUTTI_KERNEL_VARIANT {
namespace {

constexpr int kLanes = 16;

template <class To, class From>
inline __attribute__((always_inline)) To bits_as(From from) {
  return __builtin_bit_cast(To, from);
}

// Adds lanes at distance 8, 4, 2, 1.
inline float sum_of_lanes(float* lanes) {
  for (int width = kLanes / 2; width > 0; width /= 2)
    for (int i = 0; i < width; ++i) lanes[i] += lanes[i + width];
  return lanes[0];
}

void add(float* to, const float* from, int64_t n) {
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) to[i] += from[i];
}

void add_scaled(float* to, const float* from, float factor, int64_t n) {
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) to[i] += factor * from[i];
}

float dot(const float* a, const float* b, int64_t n) {
  float lanes[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes)
    for (int lane = 0; lane < kLanes; ++lane) lanes[lane] += a[i + lane] * b[i + lane];
  for (int lane = 0; i < n; ++i, ++lane) lanes[lane] += a[i] * b[i];
  return sum_of_lanes(lanes);
}

float magnitude(float x) { return bits_as<float>(bits_as<uint32_t>(x) & 0x7fffffff); }

float sum_of_magnitudes(const float* x, int64_t n) {
  float lanes[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes)
    for (int lane = 0; lane < kLanes; ++lane) lanes[lane] += magnitude(x[i + lane]);
  for (int lane = 0; i < n; ++i, ++lane) lanes[lane] += magnitude(x[i]);
  return sum_of_lanes(lanes);
}

uint32_t signs_of(const float* x, int count) {
  uint32_t word = 0;
  for (int j = 0; j < count; ++j) word |= (bits_as<uint32_t>(x[j]) >> 31) << j;
  return word;
}

void one_bit_decode(const uint32_t* words, float scale, float* out, int64_t n) {
  const uint32_t size = bits_as<uint32_t>(scale);
  for (int64_t begin = 0; begin < n; begin += 32) {
    const uint32_t word = words[begin / 32];
    const int count = n - begin < 32 ? static_cast<int>(n - begin) : 32;
    for (int j = 0; j < count; ++j)
      out[begin + j] = bits_as<float>(size | (((word >> j) & 1) << 31));
  }
}

float one_bit_encode(const float* x, uint32_t* words, float* left, int64_t n) {
  const float scale = sum_of_magnitudes(x, n) / static_cast<float>(n);
  for (int64_t begin = 0; begin < n; begin += 32)
    words[begin / 32] =
        n - begin < 32 ? signs_of(x + begin, static_cast<int>(n - begin)) : signs_of(x + begin, 32);
  const uint32_t size = bits_as<uint32_t>(scale);
  const bool finite = (size & 0x7f800000) != 0x7f800000;
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) {
    const float coded = bits_as<float>(size | (bits_as<uint32_t>(x[i]) & 0x80000000));
    left[i] = finite ? x[i] - coded : 0.0f;
  }
  return scale;
}

}  // namespace

extern const detail::CodeKernels code_kernels;
const detail::CodeKernels code_kernels = {add, add_scaled, dot, one_bit_encode, one_bit_decode};

}  // namespace tutti::comm::TUTTI_KERNEL_VARIANT
