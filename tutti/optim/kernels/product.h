/// Products of matrices, in one order of additions: what the kernels of one instruction set are.
/// Plain structs only (docs/design/optimizer_kernels.md, "A trap").
#pragma once

#include <cstdint>

namespace tutti::optim::detail {

/// c[rows, columns] = a[rows, inner] b[inner, columns], row by row in memory, none of which
/// overlap. Every element is added up from 0 in the order of `inner`.
template <class T>
using ProductKernel = void (*)(const T* a, const T* b, T* c, int64_t rows, int64_t inner,
                               int64_t columns);

struct Products {
  ProductKernel<float> float32;
  ProductKernel<double> float64;
};

}  // namespace tutti::optim::detail

namespace tutti::optim::baseline {
extern const detail::Products products;
}
namespace tutti::optim::avx2 {
extern const detail::Products products;
}
namespace tutti::optim::avx512 {
extern const detail::Products products;
}
