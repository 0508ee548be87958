// Products of matrices, compiled once per instruction set (cmake/TuttiKernels.cmake). Tiles stay in
// registers; an element's sum is over `inner` in its order whatever the tile, and nothing is
// contracted, so the bits depend neither on the vectors nor on where tiles and panels end.
//
// R rows of a tile, V elements of a vector; a tile has two vectors of columns. A panel is that many
// columns of b, kDeep rows of it, one behind the other.
#include "tutti/optim/kernels/product.h"

namespace tutti::optim {
namespace baseline {
constexpr int kVectorBytes = 16;
}
namespace avx2 {
constexpr int kVectorBytes = 32;
}
namespace avx512 {
constexpr int kVectorBytes = 64;
}
namespace {

constexpr int64_t kDeep = 128;  // 16 KiB of the first cache for the widest panel

template <class T>
using Vector [[gnu::vector_size(TUTTI_KERNEL_VARIANT::kVectorBytes)]] = T;
template <class T>
constexpr int64_t kPanel = 2 * TUTTI_KERNEL_VARIANT::kVectorBytes / int64_t{sizeof(T)};

// c += a[R, deep] panel[deep, kPanel], where a has rows of `inner`, and c of `columns`.
template <class T, int R>
void product_tile(const T* a, const T* panel, T* c, int64_t deep, int64_t inner, int64_t columns) {
  constexpr int64_t kHalf = kPanel<T> / 2;
  Vector<T> left[R], right[R];
  for (int r = 0; r < R; ++r) {
    __builtin_memcpy(&left[r], c + r * columns, sizeof(left[r]));
    __builtin_memcpy(&right[r], c + r * columns + kHalf, sizeof(right[r]));
  }
  for (int64_t k = 0; k < deep; ++k) {
    Vector<T> first, second;
    __builtin_memcpy(&first, panel + k * kPanel<T>, sizeof(first));
    __builtin_memcpy(&second, panel + k * kPanel<T> + kHalf, sizeof(second));
    for (int r = 0; r < R; ++r) {
      left[r] = left[r] + a[r * inner + k] * first;
      right[r] = right[r] + a[r * inner + k] * second;
    }
  }
  for (int r = 0; r < R; ++r) {
    __builtin_memcpy(c + r * columns, &left[r], sizeof(left[r]));
    __builtin_memcpy(c + r * columns + kHalf, &right[r], sizeof(right[r]));
  }
}

// The columns that are no whole panel.
template <class T>
void product_of_rest(const T* a, const T* b, T* c, int64_t rows, int64_t deep, int64_t inner,
                     int64_t columns, int64_t rest) {
  for (int64_t row = 0; row < rows; ++row)
    for (int64_t k = 0; k < deep; ++k)
      for (int64_t column = 0; column < rest; ++column)
        c[row * columns + column] =
            c[row * columns + column] + a[row * inner + k] * b[k * columns + column];
}

template <class T>
void product(const T* a, const T* b, T* c, int64_t rows, int64_t inner, int64_t columns) {
  constexpr int kTall = 6;
  alignas(64) T panel[kDeep * kPanel<T>];
  for (int64_t i = 0; i < rows * columns; ++i) c[i] = 0;
  for (int64_t begin = 0; begin < inner; begin += kDeep) {
    const int64_t deep = inner - begin < kDeep ? inner - begin : kDeep;
    const T* const of = b + begin * columns;
    int64_t column = 0;
    for (; column + kPanel<T> <= columns; column += kPanel<T>) {
      for (int64_t k = 0; k < deep; ++k)
        __builtin_memcpy(panel + k * kPanel<T>, of + k * columns + column, kPanel<T> * sizeof(T));
      int64_t row = 0;
      for (; row + kTall <= rows; row += kTall)
        product_tile<T, kTall>(a + row * inner + begin, panel, c + row * columns + column, deep,
                               inner, columns);
      for (; row < rows; ++row)
        product_tile<T, 1>(a + row * inner + begin, panel, c + row * columns + column, deep, inner,
                           columns);
    }
    product_of_rest(a + begin, of + column, c + column, rows, deep, inner, columns,
                    columns - column);
  }
}

}  // namespace

namespace TUTTI_KERNEL_VARIANT {
constinit const detail::Products products = {&product<float>, &product<double>};
}  // namespace TUTTI_KERNEL_VARIANT

}  // namespace tutti::optim
