/// Panels: a matrix that many products read, laid out for kernels/panels.h. Not for users.
/// Thread rule: immutable.
#pragma once

#include <torch/types.h>

#include "tutti/base/cpu_variant.h"
#include "tutti/nn/kernels/panels.h"

namespace tutti::nn::detail {

/// The table of an instruction set that runnable_variants() names.
const PanelKernels& panel_kernels(CpuVariant variant) noexcept;
/// That of best_variant().
const PanelKernels& panel_kernels();

class Panels {
 public:
  /// b: [inner, columns], float32 on the CPU, of any strides.
  explicit Panels(const at::Tensor& b, const PanelKernels& kernels = panel_kernels());

  /// c += a b; a [rows, inner], c [rows, columns].
  void add_product(const float* a, int64_t rows, float* c) const;
  /// c = start + a b; start [columns].
  void product(const float* a, int64_t rows, const float* start, float* c) const;

 private:
  const PanelKernels& kernels_;
  int64_t inner_, columns_;
  at::Tensor packed_;
};

}  // namespace tutti::nn::detail
