#include "tutti/optim/kernels/dispatch.h"

#include <cmath>
#include <type_traits>

namespace tutti::optim::detail {
namespace {

// The slice that a kernel works on, as Rule::update got it.
struct Slice {
  void* parameter;
  const void* gradient;
  std::span<void* const> states;
  int64_t num_elements;
};

template <class T>
SgdScalars<T> sgd_scalars(const SgdOptions& options, const StepScalars& step) {
  return {.learning_rate = static_cast<T>(step.learning_rate),
          .momentum = static_cast<T>(options.momentum),
          .weight_decay = static_cast<T>(options.weight_decay),
          .has_momentum = options.momentum != 0,
          .nesterov = options.nesterov,
          .first = step.count == 1};
}

template <class T, class AdamLike>
AdamScalars<T> adam_scalars(const AdamLike& options, const StepScalars& step) {
  constexpr bool kDecoupled = std::is_same_v<AdamLike, AdamWOptions>;
  const double s = std::sqrt(1 - step.beta2_power);
  return {
      .beta1 = static_cast<T>(options.beta1),
      .one_minus_beta1 = static_cast<T>(1 - options.beta1),
      .beta2 = static_cast<T>(options.beta2),
      .one_minus_beta2 = static_cast<T>(1 - options.beta2),
      .step = static_cast<T>(step.learning_rate * s / (1 - step.beta1_power)),
      .epsilon_s = static_cast<T>(options.epsilon * s),
      .weight_decay = kDecoupled ? T{0} : static_cast<T>(options.weight_decay),
      .shrink = kDecoupled ? static_cast<T>(1 - step.learning_rate * options.weight_decay) : T{1}};
}

template <class T>
AdagradScalars<T> adagrad_scalars(const AdagradOptions& options, const StepScalars& step) {
  return {.learning_rate = static_cast<T>(step.learning_rate),
          .epsilon = static_cast<T>(options.epsilon),
          .weight_decay = static_cast<T>(options.weight_decay)};
}

template <class T>
FtrlScalars<T> ftrl_scalars(const FtrlOptions& options, const StepScalars& step) {
  return {.learning_rate = static_cast<T>(step.learning_rate),
          .beta = static_cast<T>(options.beta),
          .l1 = static_cast<T>(options.l1),
          .l2 = static_cast<T>(options.l2),
          .first = step.count == 1};
}

template <class T>
T* state(const Slice& slice, size_t number) {
  return number < slice.states.size() ? static_cast<T*>(slice.states[number]) : nullptr;
}

template <class T>
void run(const KernelsOf<T>& kernels, const Rule::Options& options, const Slice& slice,
         const StepScalars& step) {
  T* const p = static_cast<T*>(slice.parameter);
  const T* const g = static_cast<const T*>(slice.gradient);
  const int64_t n = slice.num_elements;
  T* const first = state<T>(slice, 0);
  T* const second = state<T>(slice, 1);
  if (const auto* sgd = std::get_if<SgdOptions>(&options))
    kernels.sgd(sgd_scalars<T>(*sgd, step), p, g, first, n);
  else if (const auto* adam = std::get_if<AdamOptions>(&options))
    kernels.adam(adam_scalars<T>(*adam, step), p, g, first, second, n);
  else if (const auto* adamw = std::get_if<AdamWOptions>(&options))
    kernels.adam(adam_scalars<T>(*adamw, step), p, g, first, second, n);
  else if (const auto* adagrad = std::get_if<AdagradOptions>(&options))
    kernels.adagrad(adagrad_scalars<T>(*adagrad, step), p, g, first, n);
  else if (const auto* ftrl = std::get_if<FtrlOptions>(&options))
    kernels.ftrl(ftrl_scalars<T>(*ftrl, step), p, g, first, second, n);
}

}  // namespace

const Kernels& kernels_for([[maybe_unused]] CpuVariant variant) noexcept {
  if constexpr (kHasX86Variants) {
    if (variant == CpuVariant::avx512) return avx512::kernels;
    if (variant == CpuVariant::avx2) return avx2::kernels;
  }
  return baseline::kernels;
}

void update_with(const Kernels& kernels, const Rule::Options& options, DType dtype, void* parameter,
                 const void* gradient, std::span<void* const> states, int64_t num_elements,
                 const StepScalars& step) {
  const Slice slice{parameter, gradient, states, num_elements};
  if (dtype == DType::float32)
    run(kernels.float32, options, slice, step);
  else
    run(kernels.float64, options, slice, step);
}

}  // namespace tutti::optim::detail
