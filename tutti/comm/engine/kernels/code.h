/// The kernels of gradient compression: a table, filled by code.cpp once per instruction set.
///
/// Plain structs and function pointers only, as in reduce.h. All values are float32. Sums over
/// elements go over 16 lanes (element i into lane i mod 16), which are then added in one order, so
/// that every instruction set gives the same bits.
/// Thread rule: the tables are constant; any thread may use them.
#pragma once

#include <cstdint>

namespace tutti::detail {

/// Elements that share one scale in one-bit coding; a multiple of 32.
constexpr int64_t kOneBitBlock = 256;

struct CodeKernels {
  /// to[i] += from[i].
  void (*add)(float* to, const float* from, int64_t n);
  /// to[i] += factor * from[i].
  void (*add_scaled)(float* to, const float* from, float factor, int64_t n);
  /// The sum of a[i] * b[i].
  float (*dot)(const float* a, const float* b, int64_t n);
  /// One block of n <= kOneBitBlock elements: signs into words of 32 bits (bit j of word w is the
  /// sign of element 32 w + j; set: negative), and `left` gets what the coded block misses (zeros
  /// where the scale is no finite number). Returns the scale, the mean of |x|. `left` may be `x`.
  float (*one_bit_encode)(const float* x, uint32_t* words, float* left, int64_t n);
  /// out[i] = scale with the sign of element i.
  void (*one_bit_decode)(const uint32_t* words, float scale, float* out, int64_t n);
};

}  // namespace tutti::detail

namespace tutti::comm::baseline {
extern const detail::CodeKernels code_kernels;
}
namespace tutti::comm::avx2 {
extern const detail::CodeKernels code_kernels;
}
namespace tutti::comm::avx512 {
extern const detail::CodeKernels code_kernels;
}
