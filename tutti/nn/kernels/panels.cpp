// Products with packed matrices, compiled once per instruction set (cmake/TuttiKernels.cmake), with
// multiplications and additions contracted. A tile of rows x columns stays in registers while it is
// added up, as in Goto and van de Geijn, "Anatomy of high-performance matrix multiplication", 2008.
#include "tutti/nn/kernels/panels.h"

namespace tutti::nn {
namespace {

using detail::PanelProduct;

// What of a tile fits the registers, beside a line of the panel and an element of a.
#if defined(__AVX512F__)
constexpr int64_t kVector = 16, kVectors = 4, kMostRows = 6;
#elif defined(__AVX2__)
constexpr int64_t kVector = 8, kVectors = 2, kMostRows = 6;
#else
constexpr int64_t kVector = 4, kVectors = 2, kMostRows = 6;
#endif
constexpr int64_t kWidth = kVector * kVectors;
using Vector = float __attribute__((vector_size(4 * kVector), aligned(4), may_alias));

void pack(const float* from, int64_t k_stride, int64_t n_stride, int64_t inner, int64_t columns,
          float* packed) {
  for (int64_t begin = 0; begin < columns; begin += kWidth)
    for (int64_t k = 0; k < inner; ++k)
      for (int64_t n = begin; n < begin + kWidth; ++n)
        *packed++ = n < columns ? from[k * k_stride + n * n_stride] : 0.0F;
}

/// Tiles begin in `start` and end in `c`, of rows that are `start_stride` and `stride` apart.
struct Tile {
  const float* a;
  int64_t inner;
  const float* panel;
  const float* start;
  int64_t start_stride;
  float* c;
  int64_t stride;
};

template <int64_t kRows>
void multiply(const Tile& tile) {
  Vector sums[kRows][kVectors];
#pragma GCC unroll 8
  for (int64_t r = 0; r < kRows; ++r)
#pragma GCC unroll 4
    for (int64_t v = 0; v < kVectors; ++v)
      sums[r][v] =
          *reinterpret_cast<const Vector*>(tile.start + r * tile.start_stride + v * kVector);
  const float* panel = tile.panel;
  for (int64_t k = 0; k < tile.inner; ++k, panel += kWidth) {
    Vector line[kVectors];
#pragma GCC unroll 4
    for (int64_t v = 0; v < kVectors; ++v)
      line[v] = *reinterpret_cast<const Vector*>(panel + v * kVector);
#pragma GCC unroll 8
    for (int64_t r = 0; r < kRows; ++r) {
      const float x = tile.a[r * tile.inner + k];
#pragma GCC unroll 4
      for (int64_t v = 0; v < kVectors; ++v) sums[r][v] += x * line[v];
    }
  }
#pragma GCC unroll 8
  for (int64_t r = 0; r < kRows; ++r)
#pragma GCC unroll 4
    for (int64_t v = 0; v < kVectors; ++v)
      *reinterpret_cast<Vector*>(tile.c + r * tile.stride + v * kVector) = sums[r][v];
}

void multiply(int64_t rows, const Tile& tile) {
  switch (rows) {
    case 1: return multiply<1>(tile);
    case 2: return multiply<2>(tile);
    case 3: return multiply<3>(tile);
    case 4: return multiply<4>(tile);
    case 5: return multiply<5>(tile);
    default: return multiply<kMostRows>(tile);
  }
}

// The last columns, fewer than a panel has: by way of a tile that has them all.
void multiply_edge(int64_t rows, int64_t columns, Tile tile) {
  float whole[kMostRows * kWidth];
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t n = 0; n < kWidth; ++n)
      whole[r * kWidth + n] = n < columns ? tile.start[r * tile.start_stride + n] : 0.0F;
  float* const c = tile.c;
  const int64_t stride = tile.stride;
  tile.start = tile.c = whole;
  tile.start_stride = tile.stride = kWidth;
  multiply(rows, tile);
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t n = 0; n < columns; ++n) c[r * stride + n] = whole[r * kWidth + n];
}

void product(const PanelProduct& p) {
  for (int64_t begin = 0; begin < p.columns; begin += kWidth) {
    const int64_t columns = p.columns - begin;
    for (int64_t row = 0; row < p.rows; row += kMostRows) {
      const int64_t rows = p.rows - row < kMostRows ? p.rows - row : kMostRows;
      const Tile tile{.a = p.a + row * p.inner,
                      .inner = p.inner,
                      .panel = p.packed + begin * p.inner,
                      .start = p.start + row * p.start_stride + begin,
                      .start_stride = p.start_stride,
                      .c = p.c + row * p.columns + begin,
                      .stride = p.columns};
      if (columns < kWidth)
        multiply_edge(rows, columns, tile);
      else
        multiply(rows, tile);
    }
  }
}

}  // namespace

namespace TUTTI_KERNEL_VARIANT {
constinit const detail::PanelKernels panel_kernels{
    .width = kWidth, .pack = pack, .product = product};
}  // namespace TUTTI_KERNEL_VARIANT

}  // namespace tutti::nn
