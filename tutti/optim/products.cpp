#include "tutti/optim/kernels/products.h"

namespace tutti::optim::detail {

const Products& products_for([[maybe_unused]] CpuVariant variant) noexcept {
  if constexpr (kHasX86Variants) {
    if (variant == CpuVariant::avx512) return avx512::products;
    if (variant == CpuVariant::avx2) return avx2::products;
  }
  return baseline::products;
}

}  // namespace tutti::optim::detail
