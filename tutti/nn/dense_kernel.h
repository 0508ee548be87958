/// Which kernel multiplies the matrices of dense layers.
///
/// LibTorch multiplies through its BLAS. Where that is MKL, and an AMD processor has AVX-512, the
/// oneDNN inside the same LibTorch is up to twice as fast. Which one is used is a rule of processor
/// and BLAS, so that it is the same in every run, and a constant of a training: products of the two
/// round differently. docs/design/dense.md has the rule and what was measured.
/// Without LibTorch's headers. Thread rule: functions may be called from any thread,
/// use_dense_kernel() before the first product.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tutti::nn {

enum class DenseKernel : uint8_t {
  blas,    ///< what torch::linear calls
  onednn,  ///< for products of 2^19 multiplications or more; smaller ones are the BLAS's
};

/// "blas", "onednn".
const std::vector<std::string>& dense_kernel_names();
std::string_view name_of(DenseKernel kernel);
/// Throws UsageError with the nearest name.
DenseKernel dense_kernel_by_name(std::string_view name);

/// The one in use: that of use_dense_kernel(), or of the rule.
DenseKernel dense_kernel();
/// In place of the rule, in this process. Throws UsageError when this LibTorch does not carry it.
void use_dense_kernel(DenseKernel kernel);

}  // namespace tutti::nn
