// The optimizer kernels, compiled once per instruction set (cmake/TuttiKernels.cmake). Loops are
// plain C++ that the compiler vectorises: each element goes through the same IEEE operations in
// body and tail, so the bits depend neither on the vector width nor on where a slice is cut.
//
// p parameter, g gradient, h another replica's, v momentum buffer or second moment, m first moment,
// s sum of squares, z linear term, a running average, b momentum buffer, u largest gradient, w
// largest second moment.
#include "tutti/optim/kernels/update.h"

namespace tutti::optim {
namespace {

using detail::AdadeltaScalars;
using detail::AdagradScalars;
using detail::AdamaxScalars;
using detail::AdamScalars;
using detail::BlockSquares;
using detail::FtrlScalars;
using detail::LambScalars;
using detail::LarsScalars;
using detail::LionScalars;
using detail::NadamScalars;
using detail::RmspropScalars;
using detail::SgdScalars;

float square_root(float x) { return __builtin_sqrtf(x); }
double square_root(double x) { return __builtin_sqrt(x); }
float absolute(float x) { return __builtin_fabsf(x); }
double absolute(double x) { return __builtin_fabs(x); }
float with_sign(float x, float of) { return __builtin_copysignf(x, of); }
double with_sign(double x, double of) { return __builtin_copysign(x, of); }

enum class Buffer { none, first, heavy_ball };

template <class T, bool two, bool decay, Buffer buffer, bool nesterov>
void sgd_loop(const SgdScalars<T>& scalars, T* __restrict p, const T* __restrict g,
              const T* __restrict h, T* __restrict v, int64_t n) {
  const T learning_rate = scalars.learning_rate;
  const T momentum = scalars.momentum;
  const T weight_decay = scalars.weight_decay;
  for (int64_t i = 0; i < n; ++i) {
    T d = g[i];
    if constexpr (two) d = d + h[i];
    if constexpr (decay) d = d + weight_decay * p[i];
    if constexpr (buffer != Buffer::none) {
      const T next = buffer == Buffer::first ? d : momentum * v[i] + d;
      v[i] = next;
      d = nesterov ? d + momentum * next : next;
    }
    p[i] = p[i] - learning_rate * d;
  }
}

template <class T, bool two, bool decay>
void sgd_with(const SgdScalars<T>& scalars, T* p, const T* g, const T* h, T* v, int64_t n) {
  if (!scalars.has_momentum) {
    sgd_loop<T, two, decay, Buffer::none, false>(scalars, p, g, h, v, n);
  } else if (scalars.first) {
    if (scalars.nesterov)
      sgd_loop<T, two, decay, Buffer::first, true>(scalars, p, g, h, v, n);
    else
      sgd_loop<T, two, decay, Buffer::first, false>(scalars, p, g, h, v, n);
  } else {
    if (scalars.nesterov)
      sgd_loop<T, two, decay, Buffer::heavy_ball, true>(scalars, p, g, h, v, n);
    else
      sgd_loop<T, two, decay, Buffer::heavy_ball, false>(scalars, p, g, h, v, n);
  }
}

template <class T, bool two>
void sgd_of(const SgdScalars<T>& scalars, T* p, const T* g, const T* h, T* v, int64_t n) {
  if (scalars.weight_decay != 0)
    sgd_with<T, two, true>(scalars, p, g, h, v, n);
  else
    sgd_with<T, two, false>(scalars, p, g, h, v, n);
}

template <class T>
void sgd(const SgdScalars<T>& scalars, T* p, const T* g, const T* h, T* v, int64_t n) {
  if (h != nullptr)
    sgd_of<T, true>(scalars, p, g, h, v, n);
  else
    sgd_of<T, false>(scalars, p, g, h, v, n);
}

template <class T, bool two, bool decay, bool amsgrad>
void adam_loop(const AdamScalars<T>& scalars, T* __restrict p, const T* __restrict g,
               const T* __restrict h, T* __restrict m, T* __restrict v, T* __restrict w,
               int64_t n) {
  const auto [beta1, one_minus_beta1, beta2, one_minus_beta2, step, epsilon_s, weight_decay,
              shrink] = scalars;
  for (int64_t i = 0; i < n; ++i) {
    T d = g[i];
    if constexpr (two) d = d + h[i];
    if constexpr (decay) d = d + weight_decay * p[i];
    const T first = beta1 * m[i] + one_minus_beta1 * d;
    const T second = beta2 * v[i] + one_minus_beta2 * d * d;
    m[i] = first;
    v[i] = second;
    T under = second;
    if constexpr (amsgrad) {
      under = w[i] > second ? w[i] : second;  // NaN stays NaN: second has it for good
      w[i] = under;
    }
    p[i] = shrink * p[i] - step * first / (square_root(under) + epsilon_s);
  }
}

template <class T, bool two, bool decay>
void adam_with(const AdamScalars<T>& scalars, T* p, const T* g, const T* h, T* m, T* v, T* w,
               int64_t n) {
  if (w != nullptr)
    adam_loop<T, two, decay, true>(scalars, p, g, h, m, v, w, n);
  else
    adam_loop<T, two, decay, false>(scalars, p, g, h, m, v, w, n);
}

template <class T, bool two>
void adam_of(const AdamScalars<T>& scalars, T* p, const T* g, const T* h, T* m, T* v, T* w,
             int64_t n) {
  if (scalars.weight_decay != 0)
    adam_with<T, two, true>(scalars, p, g, h, m, v, w, n);
  else
    adam_with<T, two, false>(scalars, p, g, h, m, v, w, n);
}

template <class T>
void adam(const AdamScalars<T>& scalars, T* p, const T* g, const T* h, T* m, T* v, T* w,
          int64_t n) {
  if (h != nullptr)
    adam_of<T, true>(scalars, p, g, h, m, v, w, n);
  else
    adam_of<T, false>(scalars, p, g, h, m, v, w, n);
}

template <class T, bool decay>
void adagrad_loop(const AdagradScalars<T>& scalars, T* __restrict p, const T* __restrict g,
                  T* __restrict s, int64_t n) {
  const auto [learning_rate, epsilon, weight_decay] = scalars;
  for (int64_t i = 0; i < n; ++i) {
    T d = g[i];
    if constexpr (decay) d = d + weight_decay * p[i];
    const T sum = s[i] + d * d;
    s[i] = sum;
    p[i] = p[i] - learning_rate * d / (square_root(sum) + epsilon);
  }
}

template <class T>
void adagrad(const AdagradScalars<T>& scalars, T* p, const T* g, T* s, int64_t n) {
  if (scalars.weight_decay != 0)
    adagrad_loop<T, true>(scalars, p, g, s, n);
  else
    adagrad_loop<T, false>(scalars, p, g, s, n);
}

template <class T, bool first>
void ftrl_loop(const FtrlScalars<T>& scalars, T* __restrict p, const T* __restrict g,
               T* __restrict z, T* __restrict s, int64_t n) {
  const T learning_rate = scalars.learning_rate;
  const T beta = scalars.beta;
  const T l1 = scalars.l1;
  const T l2 = scalars.l2;
  for (int64_t i = 0; i < n; ++i) {
    T before = z[i];
    if constexpr (first) {
      const T far = p[i] * ((beta + square_root(s[i])) / learning_rate + l2) + with_sign(l1, p[i]);
      before = p[i] == 0 ? T{0} : -far;
    }
    const T sum = s[i] + g[i] * g[i];
    const T root = square_root(sum);
    const T linear = before + (g[i] - (root - square_root(s[i])) / learning_rate * p[i]);
    const T above = absolute(linear) - l1;
    const T next = -with_sign(above, linear) / ((beta + root) / learning_rate + l2);
    s[i] = sum;
    z[i] = linear;
    p[i] = above <= 0 ? T{0} : next;  // NaN stays NaN
  }
}

template <class T>
void ftrl(const FtrlScalars<T>& scalars, T* p, const T* g, T* z, T* s, int64_t n) {
  if (scalars.first)
    ftrl_loop<T, true>(scalars, p, g, z, s, n);
  else
    ftrl_loop<T, false>(scalars, p, g, z, s, n);
}

template <class T, bool centered, bool momentum>
void rmsprop_loop(const RmspropScalars<T>& scalars, T* __restrict p, const T* __restrict g,
                  T* __restrict s, T* __restrict a, T* __restrict b, int64_t n) {
  const T rho = scalars.rho;
  const T one_minus_rho = scalars.one_minus_rho;
  const T weight_decay = scalars.weight_decay;
  for (int64_t i = 0; i < n; ++i) {
    const T d = weight_decay != 0 ? g[i] + weight_decay * p[i] : g[i];
    const T square = rho * s[i] + one_minus_rho * d * d;
    s[i] = square;
    T variance = square;
    if constexpr (centered) {
      const T mean = rho * a[i] + one_minus_rho * d;
      a[i] = mean;
      variance = square - mean * mean;
      variance = variance < 0 ? T{0} : variance;  // rounding; NaN stays NaN
    }
    T step = d / (square_root(variance) + scalars.epsilon);
    if constexpr (momentum) {
      step = scalars.momentum * b[i] + step;
      b[i] = step;
    }
    p[i] = p[i] - scalars.learning_rate * step;
  }
}

template <class T>
void rmsprop(const RmspropScalars<T>& scalars, T* p, const T* g, T* s, T* a, T* b, int64_t n) {
  if (a != nullptr && b != nullptr)
    rmsprop_loop<T, true, true>(scalars, p, g, s, a, b, n);
  else if (a != nullptr)
    rmsprop_loop<T, true, false>(scalars, p, g, s, a, b, n);
  else if (b != nullptr)
    rmsprop_loop<T, false, true>(scalars, p, g, s, a, b, n);
  else
    rmsprop_loop<T, false, false>(scalars, p, g, s, a, b, n);
}

template <class T>
void adadelta(const AdadeltaScalars<T>& scalars, T* __restrict p, const T* __restrict g,
              T* __restrict s, T* __restrict a, int64_t n) {
  const auto [learning_rate, rho, one_minus_rho, epsilon, weight_decay] = scalars;
  for (int64_t i = 0; i < n; ++i) {
    const T d = weight_decay != 0 ? g[i] + weight_decay * p[i] : g[i];
    const T square = rho * s[i] + one_minus_rho * d * d;
    const T step = square_root(a[i] + epsilon) / square_root(square + epsilon) * d;
    s[i] = square;
    a[i] = rho * a[i] + one_minus_rho * step * step;
    p[i] = p[i] - learning_rate * step;
  }
}

template <class T>
void adamax(const AdamaxScalars<T>& scalars, T* __restrict p, const T* __restrict g,
            T* __restrict m, T* __restrict u, int64_t n) {
  const auto [beta1, one_minus_beta1, beta2, step, epsilon, weight_decay] = scalars;
  for (int64_t i = 0; i < n; ++i) {
    const T d = weight_decay != 0 ? g[i] + weight_decay * p[i] : g[i];
    const T first = beta1 * m[i] + one_minus_beta1 * d;
    const T faded = beta2 * u[i];
    const T size = absolute(d) + epsilon;
    const T largest = faded > size ? faded : size;
    m[i] = first;
    u[i] = largest;
    p[i] = p[i] - step * first / largest;
  }
}

template <class T>
void nadam(const NadamScalars<T>& scalars, T* __restrict p, const T* __restrict g, T* __restrict m,
           T* __restrict v, int64_t n) {
  const auto [beta1, one_minus_beta1, beta2, one_minus_beta2, of_gradient, of_moment, epsilon_s,
              weight_decay] = scalars;
  for (int64_t i = 0; i < n; ++i) {
    const T d = weight_decay != 0 ? g[i] + weight_decay * p[i] : g[i];
    const T first = beta1 * m[i] + one_minus_beta1 * d;
    const T second = beta2 * v[i] + one_minus_beta2 * d * d;
    m[i] = first;
    v[i] = second;
    p[i] = p[i] - (of_gradient * d + of_moment * first) / (square_root(second) + epsilon_s);
  }
}

template <class T>
void lion(const LionScalars<T>& scalars, T* __restrict p, const T* __restrict g, T* __restrict m,
          int64_t n) {
  const auto [learning_rate, beta1, one_minus_beta1, beta2, one_minus_beta2, shrink] = scalars;
  for (int64_t i = 0; i < n; ++i) {
    const T mixed = beta1 * m[i] + one_minus_beta1 * g[i];
    // 0 for 0, and NaN stays NaN.
    const T sign = absolute(mixed) > 0 ? with_sign(T{1}, mixed) : mixed;
    p[i] = shrink * p[i] - learning_rate * sign;
    m[i] = beta2 * m[i] + one_minus_beta2 * g[i];
  }
}

template <class T>
void lars(const LarsScalars<T>& scalars, T* __restrict p, const T* __restrict g, T* __restrict v,
          int64_t n) {
  const auto [learning_rate, momentum, weight_decay, trust, first] = scalars;
  for (int64_t i = 0; i < n; ++i) {
    const T d = weight_decay != 0 ? g[i] + weight_decay * p[i] : g[i];
    const T step = trust * d;
    const T next = first ? step : momentum * v[i] + step;
    v[i] = next;
    p[i] = p[i] - learning_rate * next;
  }
}

template <class T>
T lamb_step(const LambScalars<T>& scalars, T p, T m, T v) {
  return scalars.inverse * m / (square_root(v) + scalars.epsilon_s) + scalars.weight_decay * p;
}

// As many sums as the widest vector has doubles, twice, in one order whatever the vectors are.
constexpr int kLanes = 16;

double add_lanes(const double* lanes) {
  double sums[kLanes];
  for (int i = 0; i < kLanes; ++i) sums[i] = lanes[i];
  for (int width = kLanes / 2; width > 0; width /= 2)
    for (int i = 0; i < width; ++i) sums[i] = sums[i] + sums[i + width];
  return sums[0];
}

// Of value(0) to value(n - 1).
template <class Value>
double sum_of_squares(int64_t n, const Value& value) {
  double lanes[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes)
    for (int lane = 0; lane < kLanes; ++lane) {
      const double x = value(i + lane);
      lanes[lane] = lanes[lane] + x * x;
    }
  for (int lane = 0; i + lane < n; ++lane) {
    const double x = value(i + lane);
    lanes[lane] = lanes[lane] + x * x;
  }
  return add_lanes(lanes);
}

template <class T>
double square(const T* x, int64_t n) {
  return sum_of_squares(n, [x](int64_t i) { return x[i]; });
}

template <class T>
BlockSquares lamb_measure(const LambScalars<T>& scalars, const T* __restrict p,
                          const T* __restrict g, T* __restrict m, T* __restrict v, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    m[i] = scalars.beta1 * m[i] + scalars.one_minus_beta1 * g[i];
    v[i] = scalars.beta2 * v[i] + scalars.one_minus_beta2 * g[i] * g[i];
  }
  return {square(p, n),
          sum_of_squares(n, [&](int64_t i) { return lamb_step(scalars, p[i], m[i], v[i]); })};
}

template <class T>
void lamb(const LambScalars<T>& scalars, T* __restrict p, const T* __restrict m,
          const T* __restrict v, int64_t n) {
  for (int64_t i = 0; i < n; ++i) p[i] = p[i] - scalars.rate * lamb_step(scalars, p[i], m[i], v[i]);
}

template <class T>
constexpr detail::KernelsOf<T> kernels_of() {
  return {&sgd<T>,   &adam<T>, &adagrad<T>, &ftrl<T>,         &rmsprop<T>, &adadelta<T>, &adamax<T>,
          &nadam<T>, &lion<T>, &lars<T>,    &lamb_measure<T>, &lamb<T>,    &square<T>};
}

}  // namespace

namespace TUTTI_KERNEL_VARIANT {
constinit const detail::Kernels kernels = {kernels_of<float>(), kernels_of<double>()};
}  // namespace TUTTI_KERNEL_VARIANT

}  // namespace tutti::optim
