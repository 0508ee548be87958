/// The kernels of photos: a table, filled by pixels.cpp once per instruction set.
///
/// Plain structs and function pointers only (cmake/TuttiKernels.cmake says why). "RGBX" is a row of
/// pixels of 4 bytes, of which the last means nothing; a "plane" is one channel of 1 byte a pixel.
/// Every instruction set gives the same bits.
/// Thread rule: the tables are constant; any thread may use them.
#pragma once

#include <cstdint>

namespace tutti::data::detail {

/// One direction of a resampling, as kernels read it: output i is the sum over k < count[i] of
/// weights[i * taps + k] * input[first[i] + k], rounded and shifted right by `precision`. `taps` is
/// even; weights from count[i] on are 0.
struct AxisWeights {
  const int32_t* first;
  const int32_t* count;
  const int16_t* weights;
  int32_t taps;
  int32_t precision;
  int64_t size;  ///< outputs
};

/// So many pixels after those that are needed may be read, and count for nothing.
constexpr int kPixelsBeyond = 8;

struct PixelKernels {
  /// RGBX, along the row; `first` counts from `in`. Reads up to kPixelsBeyond more.
  void (*resample_row)(const uint8_t* in, const AxisWeights& axis, uint8_t* out);
  /// n bytes, each of `count` rows, `stride` bytes apart.
  void (*resample_column)(const uint8_t* in, int64_t stride, const int16_t* weights, int32_t count,
                          int32_t precision, uint8_t* out, int64_t n);
  /// RGBX to planes.
  void (*split)(const uint8_t* rgbx, int64_t n, uint8_t* r, uint8_t* g, uint8_t* b);
  /// Planes to RGBX.
  void (*join)(const uint8_t* r, const uint8_t* g, const uint8_t* b, int64_t n, uint8_t* rgbx);
  /// out = in reversed.
  void (*reverse)(const uint8_t* in, int64_t n, uint8_t* out);
  /// out = in / 255.
  void (*scale)(const uint8_t* in, int64_t n, float* out);
  /// out = (in - mean) / std; may be in place.
  void (*normalize)(const float* in, int64_t n, float mean, float std, float* out);
  /// The two in one.
  void (*scale_normalize)(const uint8_t* in, int64_t n, float mean, float std, float* out);
  /// out = in * factor + other, cut to 0..255, rounded down; may be in place.
  void (*multiply_add)(const uint8_t* in, int64_t n, float factor, float other, uint8_t* out);
  /// out = in * factor + other * (1 - factor), likewise.
  void (*blend)(const uint8_t* in, const uint8_t* other, int64_t n, float factor, uint8_t* out);
  /// 0.2989 r + 0.587 g + 0.114 b, rounded down.
  void (*gray)(const uint8_t* r, const uint8_t* g, const uint8_t* b, int64_t n, uint8_t* out);
  /// Turns the hue by `turn` (in [-0.5, 0.5], a whole circle is 1), in place.
  void (*hue)(uint8_t* r, uint8_t* g, uint8_t* b, int64_t n, float turn);
};

/// The table of the best instruction set that this CPU has.
const PixelKernels& pixel_kernels();

}  // namespace tutti::data::detail

namespace tutti::data::baseline {
extern const detail::PixelKernels pixel_kernels;
}
namespace tutti::data::avx2 {
extern const detail::PixelKernels pixel_kernels;
}
namespace tutti::data::avx512 {
extern const detail::PixelKernels pixel_kernels;
}
