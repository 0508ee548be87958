/// Kernels of layers whose values are bfloat16, that LibTorch computes no faster in it than in
/// float32: one table an instruction set, filled by bfloat16.cpp. Elements are the upper 16 bits of
/// a float; arithmetic is float32, what is stored is rounded to nearest, ties to even. All variants
/// give the same bits.
///
/// Plain structs and function pointers only, as in layers.h.
#pragma once

#include <cstdint>

namespace tutti::nn::detail {

/// Scores of a sequence's places, `matrices` of [queries, keys] one behind the other.
struct ScoresShape {
  int64_t matrices;
  int64_t queries, keys;
  float scale;  ///< that scores are multiplied with, before their softmax
  bool causal;  ///< query q sees keys 0 to q
};

struct Bfloat16Kernels {
  /// y = x Phi(x) by its tanh formula (Hendrycks and Gimpel 2016, arXiv:1606.08415).
  void (*gelu)(const uint16_t* x, uint16_t* y, int64_t count);
  /// dx of the same; `dx` may be `gradient`.
  void (*gelu_gradient)(const uint16_t* gradient, const uint16_t* x, uint16_t* dx, int64_t count);

  /// scores = softmax(scale scores) of each query, over the keys that it sees; 0 for the others.
  /// `scratch`: of as many floats as there are keys.
  void (*softmax)(const ScoresShape& shape, uint16_t* scores, float* scratch);
  /// The gradient of the scores before, from their softmax p and its gradient, which it replaces.
  void (*softmax_gradient)(const ScoresShape& shape, const uint16_t* p, uint16_t* gradient);
};

}  // namespace tutti::nn::detail

namespace tutti::nn::baseline {
extern const detail::Bfloat16Kernels bfloat16_kernels;
}
namespace tutti::nn::avx2 {
extern const detail::Bfloat16Kernels bfloat16_kernels;
}
namespace tutti::nn::avx512 {
extern const detail::Bfloat16Kernels bfloat16_kernels;
}
