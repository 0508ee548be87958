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
void run(SgdKernel<T> kernel, AdamKernel<T> /*other*/, const SgdOptions& options,
         const Slice& slice, const StepScalars& step) {
  T* v = slice.states.empty() ? nullptr : static_cast<T*>(slice.states[0]);
  kernel(sgd_scalars<T>(options, step), static_cast<T*>(slice.parameter),
         static_cast<const T*>(slice.gradient), v, slice.num_elements);
}

template <class T, class AdamLike>
void run(SgdKernel<T> /*other*/, AdamKernel<T> kernel, const AdamLike& options, const Slice& slice,
         const StepScalars& step) {
  kernel(adam_scalars<T>(options, step), static_cast<T*>(slice.parameter),
         static_cast<const T*>(slice.gradient), static_cast<T*>(slice.states[0]),
         static_cast<T*>(slice.states[1]), slice.num_elements);
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
  std::visit(
      [&](const auto& chosen) {
        if (dtype == DType::float32)
          run<float>(kernels.sgd_float32, kernels.adam_float32, chosen, slice, step);
        else
          run<double>(kernels.sgd_float64, kernels.adam_float64, chosen, slice, step);
      },
      options);
}

}  // namespace tutti::optim::detail
