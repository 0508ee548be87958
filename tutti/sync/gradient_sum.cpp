#include "tutti/sync/detail/gradient_sum.h"

#include <ATen/ops/_amp_foreach_non_finite_check_and_unscale.h>

#include <algorithm>
#include <utility>

namespace tutti::detail {
namespace {

// Sparse ones are refused by name when they are pushed.
at::Tensor in_own_memory(const at::Tensor& gradient) {
  if (!gradient.has_storage()) return gradient;
  const bool own = gradient.storage().use_count() == 1 && gradient.is_non_overlapping_and_dense();
  return own ? gradient : gradient.clone();
}

}  // namespace

void GradientSum::put(const std::vector<at::Tensor>& parameters) {
  for (size_t i = 0; i < sums_.size(); ++i)
    parameters[i].mutable_grad() = std::exchange(sums_[i], at::Tensor());
}

void GradientSum::take(const std::vector<at::Tensor>& parameters) {
  const at::NoGradGuard no_grad;
  sums_.resize(parameters.size());
  for (size_t i = 0; i < parameters.size(); ++i) {
    at::Tensor& gradient = parameters[i].mutable_grad();
    if (!gradient.defined()) continue;
    sums_[i] = in_own_memory(gradient);
    gradient.reset();
  }
  ++passes_;
}

void GradientSum::scale(const at::Tensor& factor, at::Tensor& found) {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> defined;
  for (const at::Tensor& sum : sums_)
    if (sum.defined()) defined.push_back(sum);
  if (!defined.empty()) at::_amp_foreach_non_finite_check_and_unscale_(defined, found, factor);
}

void GradientSum::add(GradientSum& other) {
  const at::NoGradGuard no_grad;
  sums_.resize(std::max(sums_.size(), other.sums_.size()));
  for (size_t i = 0; i < other.sums_.size(); ++i) {
    if (!other.sums_[i].defined()) continue;
    if (sums_[i].defined())
      sums_[i].add_(other.sums_[i]);
    else
      sums_[i] = other.sums_[i];
  }
  passes_ += other.passes_;
  other.clear();
}

void GradientSum::clear() {
  sums_.clear();
  passes_ = 0;
}

}  // namespace tutti::detail
