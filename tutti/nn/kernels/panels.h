/// Products of rows with a matrix that many products read: it is laid out in panels of columns
/// once. One table an instruction set, filled by panels.cpp. All float32.
///
/// Every element is added up in the order of `inner`, a fused multiply-add each where the
/// instruction set has it: AVX2 and AVX-512 give the same bits, the baseline others. A row does not
/// depend on how many there are. Plain structs and function pointers only, as in layers.h.
#pragma once

#include <cstdint>

namespace tutti::nn::detail {

/// c = start + a b, of `rows` x `inner` times `inner` x `columns`; rows of each one behind the
/// other.
struct PanelProduct {
  int64_t rows, inner, columns;
  const float* a;
  const float* packed;   ///< b, by PanelKernels::pack
  const float* start;    ///< c itself, or a row that all begin with
  int64_t start_stride;  ///< from row to row of `start`: columns, or 0
  float* c;
};

struct PanelKernels {
  int64_t width;  ///< columns of a panel

  /// Element (k, n) of b is from[k * k_stride + n * n_stride]. `packed`: as many floats as `inner`
  /// times `columns` rounded up to a multiple of `width`.
  void (*pack)(const float* from, int64_t k_stride, int64_t n_stride, int64_t inner,
               int64_t columns, float* packed);
  void (*product)(const PanelProduct& product);
};

}  // namespace tutti::nn::detail

namespace tutti::nn::baseline {
extern const detail::PanelKernels panel_kernels;
}
namespace tutti::nn::avx2 {
extern const detail::PanelKernels panel_kernels;
}
namespace tutti::nn::avx512 {
extern const detail::PanelKernels panel_kernels;
}
