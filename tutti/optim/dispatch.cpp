#include "tutti/optim/kernels/dispatch.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <type_traits>

namespace tutti::optim::detail {
namespace {

// The slice that a kernel works on, as Rule::update got it.
struct Slice {
  void* parameter;
  const void* gradient;
  const void* second;  // gradient, or null
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
RmspropScalars<T> rmsprop_scalars(const RmspropOptions& options, const StepScalars& step) {
  return {.learning_rate = static_cast<T>(step.learning_rate),
          .rho = static_cast<T>(options.rho),
          .one_minus_rho = static_cast<T>(1 - options.rho),
          .momentum = static_cast<T>(options.momentum),
          .epsilon = static_cast<T>(options.epsilon),
          .weight_decay = static_cast<T>(options.weight_decay)};
}

template <class T>
AdadeltaScalars<T> adadelta_scalars(const AdadeltaOptions& options, const StepScalars& step) {
  return {.learning_rate = static_cast<T>(step.learning_rate),
          .rho = static_cast<T>(options.rho),
          .one_minus_rho = static_cast<T>(1 - options.rho),
          .epsilon = static_cast<T>(options.epsilon),
          .weight_decay = static_cast<T>(options.weight_decay)};
}

template <class T>
AdamaxScalars<T> adamax_scalars(const AdamaxOptions& options, const StepScalars& step) {
  return {.beta1 = static_cast<T>(options.beta1),
          .one_minus_beta1 = static_cast<T>(1 - options.beta1),
          .beta2 = static_cast<T>(options.beta2),
          .step = static_cast<T>(step.learning_rate / (1 - step.beta1_power)),
          .epsilon = static_cast<T>(options.epsilon),
          .weight_decay = static_cast<T>(options.weight_decay)};
}

template <class T>
NadamScalars<T> nadam_scalars(const NadamOptions& options, const StepScalars& step) {
  const double s = std::sqrt(1 - step.beta2_power);
  const double now = nadam_momentum(options, step.decay_power);
  const double next = nadam_momentum(options, step.decay_power * nadam_decay(options));
  return {
      .beta1 = static_cast<T>(options.beta1),
      .one_minus_beta1 = static_cast<T>(1 - options.beta1),
      .beta2 = static_cast<T>(options.beta2),
      .one_minus_beta2 = static_cast<T>(1 - options.beta2),
      .of_gradient = static_cast<T>(step.learning_rate * s * (1 - now) / (1 - step.beta1_power)),
      .of_moment = static_cast<T>(step.learning_rate * s * next / (1 - step.beta1_power * next)),
      .epsilon_s = static_cast<T>(options.epsilon * s),
      .weight_decay = static_cast<T>(options.weight_decay)};
}

template <class T>
LionScalars<T> lion_scalars(const LionOptions& options, const StepScalars& step) {
  return {.learning_rate = static_cast<T>(step.learning_rate),
          .beta1 = static_cast<T>(options.beta1),
          .one_minus_beta1 = static_cast<T>(1 - options.beta1),
          .beta2 = static_cast<T>(options.beta2),
          .one_minus_beta2 = static_cast<T>(1 - options.beta2),
          .shrink = static_cast<T>(1 - step.learning_rate * options.weight_decay)};
}

template <class T>
LarsScalars<T> lars_scalars(const LarsOptions& options, const StepScalars& step, double trust) {
  return {.learning_rate = static_cast<T>(step.learning_rate),
          .momentum = static_cast<T>(options.momentum),
          .weight_decay = static_cast<T>(options.weight_decay),
          .trust = static_cast<T>(trust),
          .first = step.count == 1};
}

template <class T>
LambScalars<T> lamb_scalars(const LambOptions& options, const StepScalars& step, double trust) {
  const double s = std::sqrt(1 - step.beta2_power);
  return {.beta1 = static_cast<T>(options.beta1),
          .one_minus_beta1 = static_cast<T>(1 - options.beta1),
          .beta2 = static_cast<T>(options.beta2),
          .one_minus_beta2 = static_cast<T>(1 - options.beta2),
          .inverse = static_cast<T>(s / (1 - step.beta1_power)),
          .epsilon_s = static_cast<T>(options.epsilon * s),
          .weight_decay = static_cast<T>(options.weight_decay),
          .rate = static_cast<T>(step.learning_rate * trust)};
}

// One update of a slice by some options.
template <class T>
struct Update {
  const KernelsOf<T>& kernels;
  const StepScalars& step;
  double trust;
  T* p;
  const T* g;
  const T* h;
  std::array<T*, kMostStates> states;
  int64_t n;

  void operator()(const SgdOptions& o) const {
    kernels.sgd(sgd_scalars<T>(o, step), p, g, h, states[0], n);
  }
  void operator()(const AdamOptions& o) const {
    T* const largest = o.amsgrad ? states[2] : nullptr;
    kernels.adam(adam_scalars<T>(o, step), p, g, h, states[0], states[1], largest, n);
  }
  void operator()(const AdamWOptions& o) const {
    T* const largest = o.amsgrad ? states[2] : nullptr;
    kernels.adam(adam_scalars<T>(o, step), p, g, h, states[0], states[1], largest, n);
  }
  void operator()(const AdagradOptions& o) const {
    kernels.adagrad(adagrad_scalars<T>(o, step), p, g, states[0], n);
  }
  void operator()(const FtrlOptions& o) const {
    kernels.ftrl(ftrl_scalars<T>(o, step), p, g, states[0], states[1], n);
  }
  void operator()(const RmspropOptions& o) const {
    T* const average = o.centered ? states[1] : nullptr;
    T* const buffer = o.momentum != 0 ? states[o.centered ? 2 : 1] : nullptr;
    kernels.rmsprop(rmsprop_scalars<T>(o, step), p, g, states[0], average, buffer, n);
  }
  void operator()(const AdadeltaOptions& o) const {
    kernels.adadelta(adadelta_scalars<T>(o, step), p, g, states[0], states[1], n);
  }
  void operator()(const AdamaxOptions& o) const {
    kernels.adamax(adamax_scalars<T>(o, step), p, g, states[0], states[1], n);
  }
  void operator()(const NadamOptions& o) const {
    kernels.nadam(nadam_scalars<T>(o, step), p, g, states[0], states[1], n);
  }
  void operator()(const LionOptions& o) const {
    kernels.lion(lion_scalars<T>(o, step), p, g, states[0], n);
  }
  void operator()(const LarsOptions& o) const {
    kernels.lars(lars_scalars<T>(o, step, trust), p, g, states[0], n);
  }
  void operator()(const LambOptions& o) const {
    kernels.lamb(lamb_scalars<T>(o, step, trust), p, states[0], states[1], n);
  }
};

template <class T>
void run(const KernelsOf<T>& kernels, const Rule::Options& options, const Slice& slice,
         const StepScalars& step, double trust) {
  Update<T> update{kernels,
                   step,
                   trust,
                   static_cast<T*>(slice.parameter),
                   static_cast<const T*>(slice.gradient),
                   static_cast<const T*>(slice.second),
                   {},
                   slice.num_elements};
  for (size_t i = 0; i < slice.states.size(); ++i)
    update.states[i] = static_cast<T*>(slice.states[i]);
  std::visit(update, options);
}

// Calls `of(begin, count)` for each block.
template <class Of>
void for_each_block(int64_t num_elements, Of&& of) {
  for (int64_t begin = 0; begin < num_elements; begin += kBlockElements)
    of(begin, std::min(kBlockElements, num_elements - begin));
}

template <class T>
void measure(const KernelsOf<T>& kernels, const Rule::Options& options, const Slice& slice,
             const StepScalars& step, std::span<Squares> squares) {
  const T* const p = static_cast<const T*>(slice.parameter);
  const T* const g = static_cast<const T*>(slice.gradient);
  const auto* const lamb = std::get_if<LambOptions>(&options);
  for_each_block(slice.num_elements, [&](int64_t begin, int64_t count) {
    Squares& to = squares[static_cast<size_t>(begin / kBlockElements)];
    if (lamb == nullptr) {
      to = {kernels.square(p + begin, count), kernels.square(g + begin, count)};
      return;
    }
    const BlockSquares both = kernels.lamb_measure(
        lamb_scalars<T>(*lamb, step, 1.0), p + begin, g + begin,
        static_cast<T*>(slice.states[0]) + begin, static_cast<T*>(slice.states[1]) + begin, count);
    to = {both.parameter, both.step};
  });
}

template <class T>
void square(const KernelsOf<T>& kernels, const void* values, int64_t num_elements,
            std::span<double> sums) {
  const T* const x = static_cast<const T*>(values);
  for_each_block(num_elements, [&](int64_t begin, int64_t count) {
    sums[static_cast<size_t>(begin / kBlockElements)] = kernels.square(x + begin, count);
  });
}

}  // namespace

// exp(x) as its series: |x| < 0.05, so ten terms are enough.
double nadam_decay(const NadamOptions& options) {
  constexpr double kLogOf096 = -0.040821994520255166;
  const double x = kLogOf096 * options.momentum_decay;
  double power = 1;
  for (int k = 10; k > 0; --k) power = 1 + x * power / k;
  return power;
}

double nadam_momentum(const NadamOptions& options, double decay_power) {
  return options.beta1 * (1 - 0.5 * decay_power);
}

const Kernels& kernels_for([[maybe_unused]] CpuVariant variant) noexcept {
  if constexpr (kHasX86Variants) {
    if (variant == CpuVariant::avx512) return avx512::kernels;
    if (variant == CpuVariant::avx2) return avx2::kernels;
  }
  return baseline::kernels;
}

void update_with(const Kernels& kernels, const Rule::Options& options, DType dtype, void* parameter,
                 const void* gradient, std::span<void* const> states, int64_t num_elements,
                 const StepScalars& step, double trust, const void* second) {
  const Slice slice{parameter, gradient, second, states, num_elements};
  if (dtype == DType::float32)
    run(kernels.float32, options, slice, step, trust);
  else
    run(kernels.float64, options, slice, step, trust);
}

void measure_with(const Kernels& kernels, const Rule::Options& options, DType dtype,
                  const void* parameter, const void* gradient, std::span<void* const> states,
                  int64_t num_elements, const StepScalars& step, std::span<Squares> squares) {
  const Slice slice{const_cast<void*>(parameter), gradient, nullptr, states, num_elements};
  if (dtype == DType::float32)
    measure(kernels.float32, options, slice, step, squares);
  else
    measure(kernels.float64, options, slice, step, squares);
}

void square_blocks_with(const Kernels& kernels, DType dtype, const void* values,
                        int64_t num_elements, std::span<double> sums) {
  if (dtype == DType::float32)
    square(kernels.float32, values, num_elements, sums);
  else
    square(kernels.float64, values, num_elements, sums);
}

}  // namespace tutti::optim::detail
