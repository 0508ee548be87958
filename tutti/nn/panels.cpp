#include "tutti/nn/detail/panels.h"

#include "tutti/sync/before_use.h"

namespace tutti::nn::detail {

const PanelKernels& panel_kernels([[maybe_unused]] CpuVariant variant) noexcept {
  if constexpr (kHasX86Variants) {
    if (variant == CpuVariant::avx512) return avx512::panel_kernels;
    if (variant == CpuVariant::avx2) return avx2::panel_kernels;
  }
  return baseline::panel_kernels;
}

const PanelKernels& panel_kernels() {
  static const PanelKernels& best = panel_kernels(best_variant());
  return best;
}

Panels::Panels(const at::Tensor& b, const PanelKernels& kernels)
    : kernels_(kernels), inner_(b.size(0)), columns_(b.size(1)) {
  require_ready(b);
  const int64_t width = kernels.width;
  packed_ = at::empty({inner_ * ((columns_ + width - 1) / width * width)}, b.options());
  kernels.pack(b.const_data_ptr<float>(), b.stride(0), b.stride(1), inner_, columns_,
               packed_.mutable_data_ptr<float>());
}

void Panels::add_product(const float* a, int64_t rows, float* c) const {
  kernels_.product({.rows = rows,
                    .inner = inner_,
                    .columns = columns_,
                    .a = a,
                    .packed = packed_.const_data_ptr<float>(),
                    .start = c,
                    .start_stride = columns_,
                    .c = c});
}

void Panels::product(const float* a, int64_t rows, const float* start, float* c) const {
  kernels_.product({.rows = rows,
                    .inner = inner_,
                    .columns = columns_,
                    .a = a,
                    .packed = packed_.const_data_ptr<float>(),
                    .start = start,
                    .start_stride = 0,
                    .c = c});
}

}  // namespace tutti::nn::detail
