// The optimizer kernels, compiled once per instruction set (cmake/TuttiKernels.cmake). Loops are
// plain C++ that the compiler vectorises: each element goes through the same IEEE operations in
// body and tail, so the bits depend neither on the vector width nor on where a slice is cut.
//
// p parameter, g gradient, v momentum buffer or second moment, m first moment, s sum of squares, z
// linear term.
#include "tutti/optim/kernels/update.h"

namespace tutti::optim {
namespace {

using detail::AdagradScalars;
using detail::AdamScalars;
using detail::FtrlScalars;
using detail::SgdScalars;

float square_root(float x) { return __builtin_sqrtf(x); }
double square_root(double x) { return __builtin_sqrt(x); }
float absolute(float x) { return __builtin_fabsf(x); }
double absolute(double x) { return __builtin_fabs(x); }
float with_sign(float x, float of) { return __builtin_copysignf(x, of); }
double with_sign(double x, double of) { return __builtin_copysign(x, of); }

enum class Buffer { none, first, heavy_ball };

template <class T, bool decay, Buffer buffer, bool nesterov>
void sgd_loop(const SgdScalars<T>& scalars, T* __restrict p, const T* __restrict g, T* __restrict v,
              int64_t n) {
  const T learning_rate = scalars.learning_rate;
  const T momentum = scalars.momentum;
  const T weight_decay = scalars.weight_decay;
  for (int64_t i = 0; i < n; ++i) {
    T d = g[i];
    if constexpr (decay) d = d + weight_decay * p[i];
    if constexpr (buffer != Buffer::none) {
      const T next = buffer == Buffer::first ? d : momentum * v[i] + d;
      v[i] = next;
      d = nesterov ? d + momentum * next : next;
    }
    p[i] = p[i] - learning_rate * d;
  }
}

template <class T, bool decay>
void sgd_with(const SgdScalars<T>& scalars, T* p, const T* g, T* v, int64_t n) {
  if (!scalars.has_momentum) {
    sgd_loop<T, decay, Buffer::none, false>(scalars, p, g, v, n);
  } else if (scalars.first) {
    if (scalars.nesterov)
      sgd_loop<T, decay, Buffer::first, true>(scalars, p, g, v, n);
    else
      sgd_loop<T, decay, Buffer::first, false>(scalars, p, g, v, n);
  } else {
    if (scalars.nesterov)
      sgd_loop<T, decay, Buffer::heavy_ball, true>(scalars, p, g, v, n);
    else
      sgd_loop<T, decay, Buffer::heavy_ball, false>(scalars, p, g, v, n);
  }
}

template <class T>
void sgd(const SgdScalars<T>& scalars, T* p, const T* g, T* v, int64_t n) {
  if (scalars.weight_decay != 0)
    sgd_with<T, true>(scalars, p, g, v, n);
  else
    sgd_with<T, false>(scalars, p, g, v, n);
}

template <class T, bool decay>
void adam_loop(const AdamScalars<T>& scalars, T* __restrict p, const T* __restrict g,
               T* __restrict m, T* __restrict v, int64_t n) {
  const auto [beta1, one_minus_beta1, beta2, one_minus_beta2, step, epsilon_s, weight_decay,
              shrink] = scalars;
  for (int64_t i = 0; i < n; ++i) {
    T d = g[i];
    if constexpr (decay) d = d + weight_decay * p[i];
    const T first = beta1 * m[i] + one_minus_beta1 * d;
    const T second = beta2 * v[i] + one_minus_beta2 * d * d;
    m[i] = first;
    v[i] = second;
    p[i] = shrink * p[i] - step * first / (square_root(second) + epsilon_s);
  }
}

template <class T>
void adam(const AdamScalars<T>& scalars, T* p, const T* g, T* m, T* v, int64_t n) {
  if (scalars.weight_decay != 0)
    adam_loop<T, true>(scalars, p, g, m, v, n);
  else
    adam_loop<T, false>(scalars, p, g, m, v, n);
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

}  // namespace

namespace TUTTI_KERNEL_VARIANT {
constinit const detail::Kernels kernels = {
    {&sgd<float>, &adam<float>, &adagrad<float>, &ftrl<float>},
    {&sgd<double>, &adam<double>, &adagrad<double>, &ftrl<double>}};
}  // namespace TUTTI_KERNEL_VARIANT

}  // namespace tutti::optim
