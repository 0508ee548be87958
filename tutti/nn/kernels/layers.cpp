// The kernels of layers, compiled once per instruction set (cmake/TuttiKernels.cmake). Loops are
// plain C++ that the compiler vectorises: each element goes through the same IEEE operations in
// body and tail, and sums over rows are made row after row.
#include "tutti/nn/kernels/layers.h"

namespace tutti::nn {
namespace {

using detail::NormOfColumns;
using detail::PoolShape;

// NaN stays: it is to be seen; and -0.0 does, as torch has it.
inline float relu(float x) { return x < 0 ? 0.0F : x; }
inline float passed(float gradient, float y) { return y <= 0 ? 0.0F : gradient; }

void bias_relu(float* y, const float* bias, int64_t rows, int64_t columns) {
  for (int64_t r = 0; r < rows; ++r) {
    float* __restrict const row = y + r * columns;
    if (bias == nullptr)
      for (int64_t c = 0; c < columns; ++c) row[c] = relu(row[c]);
    else
      for (int64_t c = 0; c < columns; ++c) row[c] = relu(row[c] + bias[c]);
  }
}

void relu_gradient(const float* gradient, const float* y, float* out, int64_t count) {
  for (int64_t i = 0; i < count; ++i) out[i] = passed(gradient[i], y[i]);
}

void relu_gradient_sums(const float* gradient, const float* y, float* out, float* __restrict sums,
                        int64_t rows, int64_t columns) {
  for (int64_t c = 0; c < columns; ++c) sums[c] = 0;
  for (int64_t r = 0; r < rows; ++r) {
    const float* const g = gradient + r * columns;
    const float* const s = y + r * columns;
    float* __restrict const o = out + r * columns;
    for (int64_t c = 0; c < columns; ++c) {
      const float x = passed(g[c], s[c]);
      o[c] = x;
      sums[c] += x;
    }
  }
}

void column_sums(const float* x, float* __restrict sums, int64_t rows, int64_t columns) {
  for (int64_t c = 0; c < columns; ++c) sums[c] = 0;
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = 0; c < columns; ++c) sums[c] += x[r * columns + c];
}

// Channels of an image that are worked on at once: as many as a vector register holds; those that
// are left over come one by one.
#if defined(__AVX512F__)
constexpr int64_t kBlock = 16;
#elif defined(__AVX2__)
constexpr int64_t kBlock = 8;
#else
constexpr int64_t kBlock = 4;
#endif
using Floats = float __attribute__((vector_size(4 * kBlock), aligned(4), may_alias));
using Ints = int32_t __attribute__((vector_size(4 * kBlock)));
using Bytes = uint8_t __attribute__((vector_size(kBlock), aligned(1), may_alias));

struct Many {
  using Float = Floats;
  using Int = Ints;
  static Floats load(const float* from) { return *reinterpret_cast<const Floats*>(from); }
  static void store(Floats x, float* to) { *reinterpret_cast<Floats*>(to) = x; }
  static Ints places(const uint8_t* from) {
    return __builtin_convertvector(*reinterpret_cast<const Bytes*>(from), Ints);
  }
  static void store(Ints x, uint8_t* to) {
    *reinterpret_cast<Bytes*>(to) = __builtin_convertvector(x, Bytes);
  }
};

struct One {
  using Float = float;
  using Int = int32_t;
  static float load(const float* from) { return *from; }
  static void store(float x, float* to) { *to = x; }
  static int32_t places(const uint8_t* from) { return *from; }
  static void store(int32_t x, uint8_t* to) { *to = static_cast<uint8_t>(x); }
};

// One window of some channels, of which `x` is the first element; `line` floats from row to row.
template <class Some>
inline void pool_window(const float* x, int64_t k, int64_t line, int64_t channels, float* y,
                        uint8_t* places) {
  using Float = typename Some::Float;
  using Int = typename Some::Int;
  Float largest = Some::load(x);
  Int at = {};
  for (int64_t i = 0; i < k; ++i)
    for (int64_t j = 0; j < k; ++j) {
      const Float next = Some::load(x + i * line + j * channels);
      // NOLINTNEXTLINE(misc-redundant-expression): true for NaN
      const auto taken = (next > largest) | (next != next);
      largest = taken ? next : largest;
      at = taken ? Int{} + static_cast<int32_t>(i * k + j) : at;
    }
  Some::store(largest < 0 ? Float{} : largest, y);
  Some::store(at, places);
}

template <class Some>
inline void pool_window_gradient(const float* gradient, const float* y, const uint8_t* places,
                                 int64_t k, int64_t line, int64_t channels, float* dx) {
  using Float = typename Some::Float;
  using Int = typename Some::Int;
  const Float passed = Some::load(y) <= 0 ? Float{} : Some::load(gradient);
  const Int at = Some::places(places);
  for (int64_t i = 0; i < k; ++i)
    for (int64_t j = 0; j < k; ++j)
      Some::store(at == Int{} + static_cast<int32_t>(i * k + j) ? passed : Float{},
                  dx + i * line + j * channels);
}

void pool_relu(const PoolShape& shape, const float* x, float* y, uint8_t* places) {
  const int64_t k = shape.kernel, channels = shape.channels, line = shape.width * channels;
  const int64_t high = shape.height / k, wide = shape.width / k;
  for (int64_t row = 0; row < shape.images * high; ++row) {
    const float* from = x + (row / high * shape.height + row % high * k) * line;
    for (int64_t column = 0; column < wide; ++column) {
      int64_t c = 0;
      for (; c + kBlock <= channels; c += kBlock)
        pool_window<Many>(from + c, k, line, channels, y + c, places + c);
      for (; c < channels; ++c) pool_window<One>(from + c, k, line, channels, y + c, places + c);
      from += k * channels;
      y += channels;
      places += channels;
    }
  }
}

void clear(float* x, int64_t count) {
  for (int64_t i = 0; i < count; ++i) x[i] = 0;
}

void pool_relu_gradient(const PoolShape& shape, const float* gradient, const float* y,
                        const uint8_t* places, float* dx) {
  const int64_t k = shape.kernel, channels = shape.channels, line = shape.width * channels;
  const int64_t high = shape.height / k, wide = shape.width / k;
  for (int64_t row = 0; row < shape.images * high; ++row) {
    float* to = dx + (row / high * shape.height + row % high * k) * line;
    if (wide * k < shape.width)
      for (int64_t i = 0; i < k; ++i)
        clear(to + i * line + wide * k * channels, line - wide * k * channels);
    if (row % high == high - 1) clear(to + k * line, (shape.height - high * k) * line);
    for (int64_t column = 0; column < wide; ++column) {
      int64_t c = 0;
      for (; c + kBlock <= channels; c += kBlock)
        pool_window_gradient<Many>(gradient + c, y + c, places + c, k, line, channels, to + c);
      for (; c < channels; ++c)
        pool_window_gradient<One>(gradient + c, y + c, places + c, k, line, channels, to + c);
      to += k * channels;
      gradient += channels;
      y += channels;
      places += channels;
    }
  }
}

// So many rows at once, that sums are loaded and stored once for them.
constexpr int64_t kRows = 4;

template <int64_t rows>
inline void add_moments(const float* x, int64_t columns, int64_t begin, int64_t end,
                        double* __restrict sums, double* __restrict squares) {
  for (int64_t c = begin; c < end; ++c) {
    double sum = sums[c], square = squares[c];
    for (int64_t r = 0; r < rows; ++r) {
      const double value = x[r * columns + c];
      sum += value;
      square += value * value;
    }
    sums[c] = sum;
    squares[c] = square;
  }
}

void column_moments(const float* x, int64_t rows, int64_t columns, int64_t begin, int64_t end,
                    double* sums, double* squares) {
  for (int64_t c = begin; c < end; ++c) sums[c] = squares[c] = 0;
  int64_t r = 0;
  for (; r + kRows <= rows; r += kRows)
    add_moments<kRows>(x + r * columns, columns, begin, end, sums, squares);
  for (; r < rows; ++r) add_moments<1>(x + r * columns, columns, begin, end, sums, squares);
}

template <bool cut, bool adds>
inline void normalise_rows(const float* x, NormOfColumns by, const float* plus, float* y,
                           int64_t rows, int64_t columns) {
  const float* __restrict const mean = by.mean;
  const float* __restrict const scale = by.scale;
  const float* __restrict const shift = by.shift;
  for (int64_t r = 0; r < rows; ++r) {
    const float* const from = x + r * columns;
    const float* const other = adds ? plus + r * columns : nullptr;
    float* __restrict const to = y + r * columns;
    for (int64_t c = 0; c < columns; ++c) {
      float z = (from[c] - mean[c]) * scale[c] + shift[c];
      if (adds) z += other[c];
      to[c] = cut ? relu(z) : z;
    }
  }
}

void normalise(const float* x, NormOfColumns by, const float* plus, bool cut, float* y,
               int64_t rows, int64_t columns) {
  if (plus != nullptr)
    cut ? normalise_rows<true, true>(x, by, plus, y, rows, columns)
        : normalise_rows<false, true>(x, by, plus, y, rows, columns);
  else
    cut ? normalise_rows<true, false>(x, by, plus, y, rows, columns)
        : normalise_rows<false, false>(x, by, plus, y, rows, columns);
}

template <bool cut, int64_t rows>
inline void add_norm_gradients(const float* gradient, const float* x, NormOfColumns by,
                               int64_t columns, int64_t begin, int64_t end, double* __restrict sums,
                               double* __restrict products) {
  const float* __restrict const mean = by.mean;
  const float* __restrict const scale = by.scale;
  const float* __restrict const shift = by.shift;
  for (int64_t c = begin; c < end; ++c) {
    double sum = sums[c], product = products[c];
    for (int64_t r = 0; r < rows; ++r) {
      const float value = x[r * columns + c], apart = value - mean[c],
                  dy = gradient[r * columns + c];
      const double dz = cut ? passed(dy, apart * scale[c] + shift[c]) : dy;
      sum += dz;
      product += dz * (double(value) - double(mean[c]));
    }
    sums[c] = sum;
    products[c] = product;
  }
}

template <bool cut>
inline void norm_gradient_sums_of(const float* gradient, const float* x, NormOfColumns by,
                                  int64_t rows, int64_t columns, int64_t begin, int64_t end,
                                  double* sums, double* products) {
  for (int64_t c = begin; c < end; ++c) sums[c] = products[c] = 0;
  int64_t r = 0;
  for (; r + kRows <= rows; r += kRows)
    add_norm_gradients<cut, kRows>(gradient + r * columns, x + r * columns, by, columns, begin, end,
                                   sums, products);
  for (; r < rows; ++r)
    add_norm_gradients<cut, 1>(gradient + r * columns, x + r * columns, by, columns, begin, end,
                               sums, products);
}

void norm_gradient_sums(const float* gradient, const float* x, NormOfColumns by, bool cut,
                        int64_t rows, int64_t columns, int64_t begin, int64_t end, double* sums,
                        double* products) {
  cut ? norm_gradient_sums_of<true>(gradient, x, by, rows, columns, begin, end, sums, products)
      : norm_gradient_sums_of<false>(gradient, x, by, rows, columns, begin, end, sums, products);
}

template <bool cut>
inline void norm_gradient_rows(const float* gradient, const float* x, NormOfColumns by,
                               const float* __restrict offset, const float* __restrict slope,
                               float* dx, int64_t rows, int64_t columns) {
  const float* __restrict const mean = by.mean;
  const float* __restrict const scale = by.scale;
  const float* __restrict const shift = by.shift;
  for (int64_t r = 0; r < rows; ++r) {
    const float* const dy = gradient + r * columns;
    const float* const from = x + r * columns;
    float* __restrict const to = dx + r * columns;
    for (int64_t c = 0; c < columns; ++c) {
      const float apart = from[c] - mean[c];
      const float dz = cut ? passed(dy[c], apart * scale[c] + shift[c]) : dy[c];
      to[c] = ((dz - offset[c]) - apart * slope[c]) * scale[c];
    }
  }
}

void norm_gradient(const float* gradient, const float* x, NormOfColumns by, bool cut,
                   const float* offset, const float* slope, float* dx, int64_t rows,
                   int64_t columns) {
  cut ? norm_gradient_rows<true>(gradient, x, by, offset, slope, dx, rows, columns)
      : norm_gradient_rows<false>(gradient, x, by, offset, slope, dx, rows, columns);
}

void add_relu(const float* a, const float* b, float* y, int64_t count) {
  for (int64_t i = 0; i < count; ++i) y[i] = relu(a[i] + b[i]);
}

}  // namespace

namespace TUTTI_KERNEL_VARIANT {
constinit const detail::LayerKernels kernels{.bias_relu = bias_relu,
                                             .relu_gradient = relu_gradient,
                                             .relu_gradient_sums = relu_gradient_sums,
                                             .column_sums = column_sums,
                                             .pool_relu = pool_relu,
                                             .pool_relu_gradient = pool_relu_gradient,
                                             .column_moments = column_moments,
                                             .normalise = normalise,
                                             .norm_gradient_sums = norm_gradient_sums,
                                             .norm_gradient = norm_gradient,
                                             .add_relu = add_relu};
}  // namespace TUTTI_KERNEL_VARIANT

}  // namespace tutti::nn
