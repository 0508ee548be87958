#include "tutti/nn/adapted.h"

#include <ATen/Functions.h>
#include <ATen/autocast_mode.h>
#include <torch/nn/init.h>

#include <algorithm>
#include <cmath>

#include "tutti/nn/detail/graph_state.h"
#include "tutti/sync/tensors.h"

namespace tutti::nn {
namespace {

Adapter adapter_of(const LoraMatrix& matrix, const at::Tensor& base) {
  const at::NoGradGuard no_grad;
  Adapter adapter{base, at::empty({matrix.lora.rank, matrix.in}, base.options()),
                  at::zeros({matrix.out, matrix.lora.rank}, base.options()), matrix.lora.scale(),
                  matrix.lies_transposed};
  torch::nn::init::kaiming_uniform_(adapter.a, std::sqrt(5.0));
  adapter.a.set_requires_grad(true);
  adapter.b.set_requires_grad(true);
  return adapter;
}

}  // namespace

at::Tensor Adapter::sum() const {
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  const at::Tensor update = at::matmul(b, a);
  return at::add(base, lies_transposed ? update.t() : update, scale);
}

std::vector<std::pair<std::string, at::Tensor>> Adapted::merged_parameters() const {
  const at::NoGradGuard no_grad;
  std::vector<std::pair<std::string, at::Tensor>> merged;
  if (!base_) return merged;
  for (const auto& [name, parameter] : unique_parameters(*base_)) {
    const Adapter* const part = part_of(parameter);
    merged.emplace_back(name, part == nullptr ? parameter : part->sum());
  }
  return merged;
}

void Adapted::clear_adapters() {
  const at::NoGradGuard no_grad;
  for (Adapter& part : parts_) part.b.zero_();
}

void Adapted::add_adapters(torch::nn::Module& home, std::shared_ptr<torch::nn::Module> base,
                           std::vector<LoraMatrix> matrices) {
  base_ = std::move(base);
  matrices_ = std::move(matrices);
  const auto parameters = base_->named_parameters();
  for (const auto& parameter : parameters) parameter.value().set_requires_grad(false);
  for (const LoraMatrix& matrix : matrices_) {
    parts_.push_back(adapter_of(matrix, parameters[matrix.name]));
    detail::register_state(home, matrix.name_of_a(), {.parameter = parts_.back().a});
    detail::register_state(home, matrix.name_of_b(), {.parameter = parts_.back().b});
  }
}

const Adapter* Adapted::part_of(const at::Tensor& tensor) const {
  const auto part =
      std::ranges::find_if(parts_, [&](const Adapter& one) { return one.base.is_same(tensor); });
  return part == parts_.end() ? nullptr : &*part;
}

void Adapted::copy_base_of(const Adapted& from) {
  const at::NoGradGuard no_grad;
  if (!base_) return;
  const auto to = unique_parameters(*base_), values = unique_parameters(*from.base_);
  for (size_t i = 0; i < to.size(); ++i) at::Tensor(to[i].second).copy_(values[i].second);
}

}  // namespace tutti::nn
