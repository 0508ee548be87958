// Kernels of strokes, compiled once per instruction set (cmake/TuttiKernels.cmake). No multiply-add
// is fused and square roots are true: all copies give the same bits. There are no NaN and no
// infinities, so that least() and most() may be one instruction each (tutti/CMakeLists.txt).
#include "tutti/data/transforms/kernels/strokes.h"

namespace tutti::data::TUTTI_KERNEL_VARIANT {
namespace {

using detail::StrokeLine;

// Vectors of the compiler's own, as long as the instruction set has them: left to itself it makes
// longer ones of several blocks of pixels, most of which no line reaches.
#if defined(__AVX__)
using Floats = float __attribute__((vector_size(32)));
using Ints = int32_t __attribute__((vector_size(32)));
constexpr Ints kPlaces{0, 1, 2, 3, 4, 5, 6, 7};
#else
using Floats = float __attribute__((vector_size(16)));
using Ints = int32_t __attribute__((vector_size(16)));
constexpr Ints kPlaces{0, 1, 2, 3};
#endif
constexpr int32_t kLanes = sizeof(Floats) / sizeof(float);
static_assert(kLanes <= detail::kStrokeBlock);

inline __attribute__((always_inline)) float most(float a, float b) { return a > b ? a : b; }
inline __attribute__((always_inline)) float least(float a, float b) { return a < b ? a : b; }
inline __attribute__((always_inline)) float clamped(float value, float low, float high) {
  return least(most(value, low), high);
}

constexpr float kFlat = 1e-6F;  // pixels: a line that rises less is in one row

struct Span {
  int32_t begin, end;
};

inline __attribute__((always_inline)) Floats most(Floats a, Floats b) { return a > b ? a : b; }
inline __attribute__((always_inline)) Floats from_0_to_1(Floats value) {
  const Floats low = most(value, Floats{}), one = Floats{} + 1;
  return low < one ? low : one;
}

inline __attribute__((always_inline)) Floats root(Floats value) {
#if defined(__AVX__)
  return __builtin_ia32_sqrtps256(value);
#elif defined(__SSE2__)
  return __builtin_ia32_sqrtps(value);
#else
  for (int32_t i = 0; i < kLanes; ++i) value[i] = __builtin_sqrtf(value[i]);
  return value;
#endif
}

// Of pixels whose middles lie from `low` to `high`. A tenth of a pixel more than is needed on each
// side, so that rounding leaves none out: what the line does not reach stays as it is.
inline __attribute__((always_inline)) Span span_between(float low, float high, float edge) {
  return {static_cast<int32_t>(clamped(low + 0.4F, 0, edge)),
          static_cast<int32_t>(clamped(high + 0.6F, 0, edge))};
}

// The pixels of the row whose middle is at y. `steepness`: 1 / (y1 - y0), 0 of one that is flat.
inline __attribute__((always_inline)) Span span_of(const StrokeLine& line, float steepness, float y,
                                                   float edge) {
  float from = line.x0, to = line.x1;
  if (steepness != 0) {
    const float low = clamped((y - line.reach - line.y0) * steepness, 0, 1);
    const float high = clamped((y + line.reach - line.y0) * steepness, 0, 1);
    from = line.x0 + low * (line.x1 - line.x0);
    to = line.x0 + high * (line.x1 - line.x0);
  }
  return span_between(least(from, to) - line.reach, most(from, to) + line.reach, edge);
}

template <int kChannels>
void draw_on(const StrokeLine& drawn, int32_t side, int32_t stride, float* __restrict planes) {
  const StrokeLine line = drawn;  // a copy that no pixel can be part of
  const float run = line.x1 - line.x0, rise = line.y1 - line.y0;
  const float square = run * run + rise * rise;
  const float inverse = square > kFlat * kFlat ? 1 / square : 0;  // a dot has no direction
  const float steepness = rise > kFlat || rise < -kFlat ? 1 / rise : 0;
  const auto edge = static_cast<float>(side);
  const Span rows =
      span_between(least(line.y0, line.y1) - line.reach, most(line.y0, line.y1) + line.reach, edge);
  const int64_t plane = static_cast<int64_t>(side) * stride;
  for (int32_t row = rows.begin; row < rows.end; ++row) {
    const float y = static_cast<float>(row) + 0.5F;
    const float down = y - line.y0;
    const Span span = span_of(line, steepness, y, edge);
    for (int32_t x = span.begin; x < span.end; x += kLanes) {
      const Floats across = __builtin_convertvector(kPlaces + x, Floats) + 0.5F - line.x0;
      const Floats along = from_0_to_1((across * run + down * rise) * inverse);
      const Floats dx = across - along * run, dy = down - along * rise;
      const Floats ink = from_0_to_1(line.reach - root(dx * dx + dy * dy));
      float* const pixels = planes + static_cast<int64_t>(row) * stride + x;
      for (int c = 0; c < kChannels; ++c) {
        Floats before;
        __builtin_memcpy(&before, pixels + c * plane, sizeof before);
        const Floats after = most(before, ink * line.values[c]);
        __builtin_memcpy(pixels + c * plane, &after, sizeof after);
      }
    }
  }
}

void draw(const StrokeLine& line, int32_t side, int32_t stride, int32_t channels, float* planes) {
  if (channels == 1)
    draw_on<1>(line, side, stride, planes);
  else
    draw_on<detail::kStrokeChannels>(line, side, stride, planes);
}

void to_bytes(const float* planes, int64_t rows, int32_t side, int32_t stride, uint8_t* out) {
  for (int64_t row = 0; row < rows; ++row) {
    const float* __restrict const from = planes + row * stride;
    uint8_t* __restrict const to = out + row * side;
    for (int32_t i = 0; i < side; ++i) {
      const float above = from[i] + 0.5F;
      to[i] = static_cast<uint8_t>(static_cast<int32_t>(above));
    }
  }
}

}  // namespace

extern const detail::StrokeKernels stroke_kernels{draw, to_bytes};

}  // namespace tutti::data::TUTTI_KERNEL_VARIANT
