// Kernels of photos, compiled once per instruction set (cmake/TuttiKernels.cmake). Resampling is in
// integers; of floats no multiply-add is fused: all copies give the same bits.
#include "tutti/data/transforms/kernels/pixels.h"

namespace tutti::data::TUTTI_KERNEL_VARIANT {
namespace {

using detail::AxisWeights;

// Vectors of the compiler's own, of which it makes what the instruction set has.
using Bytes16 = uint8_t __attribute__((vector_size(16)));
using Shorts8 = int16_t __attribute__((vector_size(16)));
using Ints4 = int32_t __attribute__((vector_size(16)));

constexpr int kBlock = 64;  // bytes that resampling makes at a time

inline int32_t half_of(int32_t precision) { return precision > 0 ? 1 << (precision - 1) : 0; }

inline __attribute__((always_inline)) uint8_t byte_of(int32_t value) {
  return static_cast<uint8_t>(value < 0 ? 0 : value > 255 ? 255 : value);
}

inline __attribute__((always_inline)) uint8_t byte_of(float value) {
  const float low = value > 0 ? value : 0;
  return static_cast<uint8_t>(static_cast<int32_t>(low < 255 ? low : 255.0f));
}

template <class T>
inline __attribute__((always_inline)) T load4(const void* from) {
  int32_t bits = 0;
  __builtin_memcpy(&bits, from, 4);
  return __builtin_bit_cast(T, Ints4{bits, 0, 0, 0});
}

// a[2 i] * b[2 i] + a[2 i + 1] * b[2 i + 1], which x86 has as one instruction.
inline __attribute__((always_inline)) Ints4 dot_pairs(Shorts8 a, Shorts8 b) {
#if defined(__SSE2__)
  return __builtin_ia32_pmaddwd128(a, b);
#else
  Ints4 sums{};
  for (int i = 0; i < 4; ++i) sums[i] = a[2 * i] * b[2 * i] + a[2 * i + 1] * b[2 * i + 1];
  return sums;
#endif
}

// One pixel: two of the input's at a time, their channels side by side.
inline __attribute__((always_inline)) Ints4 resample_pixel(const uint8_t* in,
                                                           const int16_t* weights, int32_t pairs,
                                                           Ints4 half) {
  Ints4 sum = half;
  for (int32_t k = 0; k < 2 * pairs; k += 2) {
    const Bytes16 pair =
        __builtin_shufflevector(load4<Bytes16>(in + 4 * k), load4<Bytes16>(in + 4 * k + 4), 0, 16,
                                1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    const Bytes16 wide = __builtin_shufflevector(pair, Bytes16{}, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20,
                                                 5, 21, 6, 22, 7, 23);
    const Ints4 both = __builtin_shufflevector(load4<Ints4>(weights + k), Ints4{}, 0, 0, 0, 0);
    sum += dot_pairs(__builtin_bit_cast(Shorts8, wide), __builtin_bit_cast(Shorts8, both));
  }
  return sum;
}

// kPairs > 0: so many for each output, weights of 0 among them: a loop whose length changes from
// output to output is guessed wrong. 0: as many as there are.
template <int kPairs>
void resample_row_of(const uint8_t* in, const AxisWeights& axis, uint8_t* out) {
  static_assert(2 * kPairs <= detail::kPixelsBeyond);
  const Ints4 half = Ints4{} + half_of(axis.precision);
  constexpr int kPixels = kBlock / 4;
  int32_t sums[kBlock] = {};
  for (int64_t begin = 0; begin < axis.size; begin += kPixels) {
    const int pixels = static_cast<int>(axis.size - begin < kPixels ? axis.size - begin : kPixels);
    for (int i = 0; i < pixels; ++i) {
      const int64_t to = begin + i;
      const int32_t pairs = kPairs > 0 ? kPairs : (axis.count[to] + 1) / 2;
      const Ints4 sum = resample_pixel(in + int64_t{4} * axis.first[to],
                                       axis.weights + to * axis.taps, pairs, half);
      __builtin_memcpy(sums + 4 * i, &sum, sizeof(sum));
    }
    for (int i = 0; i < 4 * pixels; ++i) out[4 * begin + i] = byte_of(sums[i] >> axis.precision);
  }
}

void resample_row(const uint8_t* in, const AxisWeights& axis, uint8_t* out) {
  switch (axis.taps) {
    case 2: return resample_row_of<1>(in, axis, out);
    case 4: return resample_row_of<2>(in, axis, out);
    case 6: return resample_row_of<3>(in, axis, out);
    case 8: return resample_row_of<4>(in, axis, out);
    default: return resample_row_of<0>(in, axis, out);
  }
}

void resample_block(const uint8_t* in, int64_t stride, const int16_t* weights, int32_t count,
                    int32_t precision, uint8_t* out) {
  int32_t sums[kBlock];
  for (int i = 0; i < kBlock; ++i) sums[i] = half_of(precision);
  for (int32_t k = 0; k < count; ++k)
    for (int i = 0; i < kBlock; ++i) sums[i] += weights[k] * in[k * stride + i];
  for (int i = 0; i < kBlock; ++i) out[i] = byte_of(sums[i] >> precision);
}

void resample_column(const uint8_t* in, int64_t stride, const int16_t* weights, int32_t count,
                     int32_t precision, uint8_t* out, int64_t n) {
  int64_t i = 0;
  for (; i + kBlock <= n; i += kBlock)
    resample_block(in + i, stride, weights, count, precision, out + i);
  for (; i < n; ++i) {
    int32_t sum = half_of(precision);
    for (int32_t k = 0; k < count; ++k) sum += weights[k] * in[k * stride + i];
    out[i] = byte_of(sum >> precision);
  }
}

void split(const uint8_t* __restrict rgbx, int64_t n, uint8_t* __restrict r, uint8_t* __restrict g,
           uint8_t* __restrict b) {
  for (int64_t i = 0; i < n; ++i) {
    r[i] = rgbx[4 * i];
    g[i] = rgbx[4 * i + 1];
    b[i] = rgbx[4 * i + 2];
  }
}

// A pixel as one number, so that the bytes of many are put in place at once.
void join(const uint8_t* r, const uint8_t* g, const uint8_t* b, int64_t n,
          uint8_t* __restrict rgbx) {
  for (int64_t i = 0; i < n; ++i) {
    const uint32_t pixel =
        r[i] | static_cast<uint32_t>(g[i]) << 8 | static_cast<uint32_t>(b[i]) << 16;
    __builtin_memcpy(rgbx + 4 * i, &pixel, 4);
  }
}

void reverse(const uint8_t* __restrict in, int64_t n, uint8_t* __restrict out) {
  for (int64_t i = 0; i < n; ++i) out[i] = in[n - 1 - i];
}

constexpr float kScale = 1.0f / 255.0f;

void scale(const uint8_t* __restrict in, int64_t n, float* __restrict out) {
  for (int64_t i = 0; i < n; ++i) out[i] = static_cast<float>(in[i]) * kScale;
}

void normalize(const float* in, int64_t n, float mean, float std, float* out) {
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) out[i] = (in[i] - mean) / std;
}

void scale_normalize(const uint8_t* __restrict in, int64_t n, float mean, float std,
                     float* __restrict out) {
  for (int64_t i = 0; i < n; ++i) out[i] = (static_cast<float>(in[i]) * kScale - mean) / std;
}

void multiply_add(const uint8_t* in, int64_t n, float factor, float other, uint8_t* out) {
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) out[i] = byte_of(static_cast<float>(in[i]) * factor + other);
}

void blend(const uint8_t* in, const uint8_t* other, int64_t n, float factor, uint8_t* out) {
  const float rest = static_cast<float>(1.0 - static_cast<double>(factor));
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i)
    out[i] = byte_of(static_cast<float>(in[i]) * factor + static_cast<float>(other[i]) * rest);
}

void gray(const uint8_t* r, const uint8_t* g, const uint8_t* b, int64_t n,
          uint8_t* __restrict out) {
  for (int64_t i = 0; i < n; ++i)
    out[i] = byte_of(static_cast<float>(r[i]) * 0.2989f + static_cast<float>(g[i]) * 0.587f +
                     static_cast<float>(b[i]) * 0.114f);
}

inline __attribute__((always_inline)) float most(float a, float b) { return a > b ? a : b; }
inline __attribute__((always_inline)) float least(float a, float b) { return a < b ? a : b; }

// One channel of a colour of that hue: v (1 - s k) with k = clamp(min(t, 4 - t), 0, 1) for
// t = (offset + 6 h) mod 6, the closed form of the six cases.
inline __attribute__((always_inline)) uint8_t channel(float offset, float h, float s, float v) {
  float t = offset + 6 * h;
  t = t >= 6 ? t - 6 : t;
  const float k = most(0, least(1, least(t, 4 - t)));
  // 255.999 and no rounding: torchvision's way from 0..1 to bytes.
  return byte_of(v * (1 - s * k) * 255.999f);
}

void hue(uint8_t* __restrict r, uint8_t* __restrict g, uint8_t* __restrict b, int64_t n,
         float turn) {
  for (int64_t i = 0; i < n; ++i) {
    const float red = static_cast<float>(r[i]) * kScale;
    const float green = static_cast<float>(g[i]) * kScale;
    const float blue = static_cast<float>(b[i]) * kScale;
    const float v = most(red, most(green, blue));
    const float range = v - least(red, least(green, blue));
    const float divisor = range > 0 ? range : 1;
    const float s = range / (range > 0 ? v : 1);
    const float from_red = (green - blue) / divisor;
    const float from_green = 2 + (blue - red) / divisor;
    const float from_blue = 4 + (red - green) / divisor;
    float h = (v == red ? from_red : v == green ? from_green : from_blue) * (1.0f / 6) + turn;
    h = h < 0 ? h + 1 : h;   // from -1/6 - 1/2 ...
    h = h >= 1 ? h - 1 : h;  // ... to 5/6 + 1/2
    r[i] = channel(5, h, s, v);
    g[i] = channel(3, h, s, v);
    b[i] = channel(1, h, s, v);
  }
}

}  // namespace

extern const detail::PixelKernels pixel_kernels{
    resample_row, resample_column, split,        join,  reverse, scale,
    normalize,    scale_normalize, multiply_add, blend, gray,    hue};

}  // namespace tutti::data::TUTTI_KERNEL_VARIANT
