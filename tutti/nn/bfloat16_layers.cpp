#include "tutti/nn/detail/bfloat16_layers.h"

#include <algorithm>
#include <cmath>

namespace tutti::nn::detail {
namespace {

// B batch, L length, H heads, W features of one, P pairs of sample and head: B H.

const uint16_t* bits_of(const at::Tensor& x) {
  return reinterpret_cast<const uint16_t*>(x.const_data_ptr<at::BFloat16>());
}
uint16_t* bits_to(const at::Tensor& x) {
  return reinterpret_cast<uint16_t*>(x.mutable_data_ptr<at::BFloat16>());
}

// Scores that are worked on at once: 2 MiB, which stay in cache from one product to the next.
constexpr int64_t kScores = int64_t{1} << 20;

/// Queries, keys and values, of each [P, L, W].
struct Heads {
  Heads(const at::Tensor& x, int64_t heads, bool causal)
      : batch(x.size(0)), length(x.size(1)), heads(heads), width(x.size(2) / 3 / heads) {
    const at::Tensor by_head =
        x.reshape({batch, length, 3, heads, width}).permute({2, 0, 3, 1, 4}).contiguous();
    parts = by_head.view({3, batch * heads, length, width});
    shape = {.matrices = 0,
             .queries = length,
             .keys = length,
             .scale = static_cast<float>(1 / std::sqrt(static_cast<double>(width))),
             .causal = causal};
  }

  /// Calls `work` with the first pair and how many, until all were.
  template <class Work>
  void in_pieces(const Work& work) {
    const int64_t pairs = batch * heads;
    const int64_t most = std::max<int64_t>(1, kScores / (length * length));
    for (int64_t first = 0; first < pairs; first += most)
      work(first, std::min(most, pairs - first));
  }
  at::Tensor part(int64_t which, int64_t first, int64_t count) const {
    return parts[which].narrow(0, first, count);
  }
  at::Tensor softmax(int64_t first, int64_t count) {
    at::Tensor scores = at::bmm(part(0, first, count), part(1, first, count).transpose(1, 2));
    shape.matrices = count;
    if (!scratch.defined()) scratch = at::empty({length}, at::kFloat);
    bfloat16_kernels().softmax(shape, bits_to(scores), scratch.mutable_data_ptr<float>());
    return scores;
  }

  int64_t batch, length, heads, width;
  at::Tensor parts;  // [3, P, L, W]
  at::Tensor scratch;
  ScoresShape shape;
};

}  // namespace

const Bfloat16Kernels& bfloat16_kernels([[maybe_unused]] CpuVariant variant) noexcept {
  if constexpr (kHasX86Variants) {
    if (variant == CpuVariant::avx512) return avx512::bfloat16_kernels;
    if (variant == CpuVariant::avx2) return avx2::bfloat16_kernels;
  }
  return baseline::bfloat16_kernels;
}

const Bfloat16Kernels& bfloat16_kernels() noexcept {
  static const Bfloat16Kernels& best = bfloat16_kernels(best_variant());
  return best;
}

at::Tensor gelu_in_bfloat16(const at::Tensor& x) {
  at::Tensor y = at::empty_like(x);
  bfloat16_kernels().gelu(bits_of(x), bits_to(y), x.numel());
  return y;
}

at::Tensor gelu_gradient_in_bfloat16(const at::Tensor& gradient, const at::Tensor& x) {
  at::Tensor dx = at::empty_like(x);
  bfloat16_kernels().gelu_gradient(bits_of(gradient), bits_of(x), bits_to(dx), x.numel());
  return dx;
}

at::Tensor attend_in_bfloat16(const at::Tensor& x, int64_t heads, bool causal) {
  Heads of(x, heads, causal);
  at::Tensor mixed = at::empty({of.batch * heads, of.length, of.width}, x.options());
  of.in_pieces([&](int64_t first, int64_t count) {
    at::Tensor piece = mixed.narrow(0, first, count);
    at::bmm_out(piece, of.softmax(first, count), of.part(2, first, count));
  });
  return mixed.view({of.batch, heads, of.length, of.width})
      .transpose(1, 2)
      .reshape({of.batch, of.length, heads * of.width});
}

at::Tensor attend_gradient_in_bfloat16(const at::Tensor& gradient, const at::Tensor& x,
                                       int64_t heads, bool causal) {
  Heads of(x, heads, causal);
  const at::Tensor above = gradient.reshape({of.batch, of.length, heads, of.width})
                               .transpose(1, 2)
                               .reshape({of.batch * heads, of.length, of.width});
  const at::Tensor gradients = at::empty_like(of.parts);
  of.in_pieces([&](int64_t first, int64_t count) {
    const at::Tensor p = of.softmax(first, count);
    const at::Tensor dy = above.narrow(0, first, count);
    const auto put = [&](int64_t which, const at::Tensor& a, const at::Tensor& b) {
      at::Tensor piece = gradients[which].narrow(0, first, count);
      at::bmm_out(piece, a, b);
    };
    put(2, p.transpose(1, 2), dy);
    const at::Tensor of_scores = at::bmm(dy, of.part(2, first, count).transpose(1, 2));
    bfloat16_kernels().softmax_gradient(of.shape, bits_of(p), bits_to(of_scores));
    put(0, of_scores, of.part(1, first, count));
    put(1, of_scores.transpose(1, 2), of.part(0, first, count));
  });
  return gradients.view({3, of.batch, heads, of.length, of.width})
      .permute({1, 3, 0, 2, 4})
      .reshape(x.sizes());
}

}  // namespace tutti::nn::detail
