// Operators that CUDA composes, or chooses, otherwise than the CPU: dropout and attention.
#include <ATen/ATen.h>
#include <ATen/SDPBackend.h>
#include <ATen/native/DispatchStub.h>
#include <ATen/native/transformers/attention.h>
#include <torch/library.h>

#include "tests/support/fake_cuda/kernels.h"

namespace tutti::test::fake_cuda {
namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;

// The CPU's kernel draws from its default generator; bernoulli_ draws from the device's, now.
std::tuple<Tensor, Tensor> native_dropout(const Tensor& input, double p,
                                          std::optional<bool> train) {
  auto mask = at::empty(input.sizes(), input.options().dtype(at::kBool));
  if (p == 0 || !train.value_or(true) || input.numel() == 0)
    return {input.clone(), mask.fill_(true)};
  mask.bernoulli_(1 - p);
  return {input.mul(mask).mul_(p == 1 ? 0. : 1. / (1 - p)), mask};
}

Tensor native_dropout_backward(const Tensor& gradient, const Tensor& mask, double scale) {
  return gradient.mul(mask).mul_(scale);
}

// Attention: where the CPU has a kernel for the whole of it, that one, by the operators which
// LibTorch leaves to backends; else its composition.
int64_t choose_attention(const Tensor& query, const Tensor& key, const Tensor& value,
                         const OptionalTensor& mask, double dropout, bool is_causal,
                         std::optional<double> scale, bool enable_gqa) {
  const auto like = [](const Tensor& t) {
    auto alias = cpu_alias(t);
    return alias.set_requires_grad(t.requires_grad());
  };
  const auto choice = at::_fused_sdp_choice(like(query), like(key), like(value),
                                            mask ? OptionalTensor(like(*mask)) : mask, dropout,
                                            is_causal, scale, enable_gqa);
  const bool whole = choice == static_cast<int64_t>(at::SDPBackend::flash_attention);
  return static_cast<int64_t>(whole ? at::SDPBackend::overrideable : at::SDPBackend::math);
}

int64_t fused_sdp_choice(const Tensor& query, const Tensor& key, const Tensor& value,
                         const OptionalTensor& mask, double dropout, bool is_causal,
                         std::optional<double> scale, bool enable_gqa) {
  return choose_attention(query, key, value, mask, dropout, is_causal, scale, enable_gqa);
}

std::tuple<Tensor, Tensor, Tensor, Tensor, c10::SymInt, c10::SymInt, Tensor, Tensor, Tensor>
whole_attention(const Tensor& query, const Tensor& key, const Tensor& value,
                const OptionalTensor& mask, double dropout, bool is_causal, bool,
                std::optional<double> scale) {
  auto [output, logsumexp] = at::_scaled_dot_product_flash_attention_for_cpu(
      query, key, value, dropout, is_causal, mask, scale);
  // The rest is what CUDA's kernels keep for backward.
  return {output,      logsumexp, Tensor(), Tensor(), query.size(2),
          key.size(2), Tensor(),  Tensor(), Tensor()};
}

std::tuple<Tensor, Tensor, Tensor, Tensor> whole_attention_backward(
    const Tensor& gradient, const Tensor& query, const Tensor& key, const Tensor& value,
    const Tensor& mask, std::array<bool, 4>, const Tensor& output, const Tensor& logsumexp,
    const Tensor&, const Tensor&, c10::SymInt, c10::SymInt, double dropout, bool is_causal,
    const Tensor&, const Tensor&, std::optional<double> scale) {
  auto [of_query, of_key, of_value] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
      gradient, query, key, value, output, logsumexp, dropout, is_causal,
      mask.defined() ? OptionalTensor(mask) : std::nullopt, scale);
  return {of_query, of_key, of_value, Tensor()};
}

TORCH_LIBRARY_IMPL(aten, CUDA, m) {
  m.impl("native_dropout", native_dropout);
  m.impl("native_dropout_backward", native_dropout_backward);
  m.impl("_fused_sdp_choice", fused_sdp_choice);
  m.impl("_scaled_dot_product_fused_attention_overrideable", whole_attention);
  m.impl("_scaled_dot_product_fused_attention_overrideable_backward", whole_attention_backward);
}

const bool attention_is_chosen = [] {
  at::native::_fused_sdp_choice_stub.set_cuda_dispatch_ptr(&choose_attention);
  return true;
}();

}  // namespace
}  // namespace tutti::test::fake_cuda
