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

/// How images with channels innermost are normalised, for each channel:
/// (x - mean) * scale + shift.
struct NormOfColumns {
  const float* mean;
  const float* scale;
  const float* shift;
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

  /// Of the columns from `begin` to before `end`: sums[c] of x, squares[c] of x * x, row after row
  /// in double.
  void (*column_moments)(const float* x, int64_t rows, int64_t columns, int64_t begin, int64_t end,
                         double* sums, double* squares);

  /// y = (x - mean) * scale + shift + plus, cut off below zero where `relu`. `plus` may be null.
  void (*normalise)(const float* x, NormOfColumns by, const float* plus, bool relu, float* y,
                    int64_t rows, int64_t columns);

  /// dz = gradient where normalise() gives what is above zero or NaN, or without `relu`, else 0. Of
  /// the columns from `begin` to before `end`: sums[c] of dz, products[c] of dz * (x - mean), row
  /// after row in double.
  void (*norm_gradient_sums)(const float* gradient, const float* x, NormOfColumns by, bool relu,
                             int64_t rows, int64_t columns, int64_t begin, int64_t end,
                             double* sums, double* products);

  /// dx = ((dz - offset) - (x - mean) * slope) * scale, by that dz.
  void (*norm_gradient)(const float* gradient, const float* x, NormOfColumns by, bool relu,
                        const float* offset, const float* slope, float* dx, int64_t rows,
                        int64_t columns);

  /// y = max(a + b, 0); NaN stays NaN. `y` may be one of them.
  void (*add_relu)(const float* a, const float* b, float* y, int64_t count);
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
