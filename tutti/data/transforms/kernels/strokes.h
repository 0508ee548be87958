/// The kernels of strokes: a table, filled by strokes.cpp once per instruction set.
///
/// Plain structs and function pointers only (cmake/TuttiKernels.cmake says why). Every instruction
/// set gives the same bits. Thread rule: the tables are constant; any thread may use them.
#pragma once

#include <cstdint>

namespace tutti::data::detail {

inline constexpr int kStrokeChannels = 3;

/// A line with round ends, in pixels: pixel (x, y) has its middle at (x + 0.5, y + 0.5).
struct StrokeLine {
  float x0, y0, x1, y1;
  float reach;                    ///< half its width and half a pixel
  float values[kStrokeChannels];  ///< what a pixel that it covers has in each channel
};

/// Pixels that are drawn at once, at most: rows of planes have so many more than are seen.
inline constexpr int32_t kStrokeBlock = 8;

struct StrokeKernels {
  /// Raises the pixels of `channels` planes [side, stride] to values * clamp(reach - d, 0, 1),
  /// where d is the distance from a pixel's middle to the line. What lies behind `side` in a row
  /// means nothing. `channels` 1 or 3; `stride`: `side` + kStrokeBlock or more.
  void (*draw)(const StrokeLine& line, int32_t side, int32_t stride, int32_t channels,
               float* planes);
  /// out [rows, side] = planes [rows, stride], rounded; 0 <= planes <= 255.
  void (*to_bytes)(const float* planes, int64_t rows, int32_t side, int32_t stride, uint8_t* out);
};

/// Those of best_variant().
const StrokeKernels& stroke_kernels();

}  // namespace tutti::data::detail

namespace tutti::data::baseline {
extern const detail::StrokeKernels stroke_kernels;
}
namespace tutti::data::avx2 {
extern const detail::StrokeKernels stroke_kernels;
}
namespace tutti::data::avx512 {
extern const detail::StrokeKernels stroke_kernels;
}
