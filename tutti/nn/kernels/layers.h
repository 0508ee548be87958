/// Kernels of layers that a graph runs by itself: one table an instruction set, filled by
/// layers.cpp. All float32, rows one behind the other; all variants give the same bits.
///
/// Plain structs and function pointers only: the kernel source is compiled with several instruction
/// sets, and no inline code of a header may come out of it.
#pragma once

#include <cstdint>

namespace tutti::nn::detail {

/// A max-pool of windows that do not overlap, over an image with channels innermost: `kernel` is
/// side and stride. At most 15, so that a place in a window fits a byte. What is left at the lower
/// and right edge belongs to no window.
struct PoolShape {
  int64_t images;
  int64_t height, width;  ///< of the input
  int64_t channels;
  int64_t kernel;
};

struct LayerKernels {
  /// y = max(y + bias, 0), of `rows` x `columns`; NaN stays NaN. `bias` may be null.
  void (*bias_relu)(float* y, const float* bias, int64_t rows, int64_t columns);

  /// out = gradient where the ReLU's output y is above zero or NaN, else 0. `out` may be
  /// `gradient`.
  void (*relu_gradient)(const float* gradient, const float* y, float* out, int64_t count);

  /// The same, and sums[c] = the sum of column c of `out`, row after row.
  void (*relu_gradient_sums)(const float* gradient, const float* y, float* out, float* sums,
                             int64_t rows, int64_t columns);

  /// sums[c] = the sum of column c of x, row after row.
  void (*column_sums)(const float* x, float* sums, int64_t rows, int64_t columns);

  /// y = max(largest of each window, 0); `places`: of which element, the first of equal ones, row
  /// by row; of a NaN the last one. The values and gradients of torch's max_pool2d, then relu.
  void (*pool_relu)(const PoolShape& shape, const float* x, float* y, uint8_t* places);

  /// dx of the same; every element of it is written.
  void (*pool_relu_gradient)(const PoolShape& shape, const float* gradient, const float* y,
                             const uint8_t* places, float* dx);
};

}  // namespace tutti::nn::detail

namespace tutti::nn::baseline {
extern const detail::LayerKernels kernels;
}
namespace tutti::nn::avx2 {
extern const detail::LayerKernels kernels;
}
namespace tutti::nn::avx512 {
extern const detail::LayerKernels kernels;
}
