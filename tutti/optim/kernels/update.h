/// The optimizer kernels' table: one per instruction set, filled by update.cpp.
///
/// Plain structs and function pointers only: the kernel source is compiled with several instruction
/// sets, and no inline code of a header may come out of it.
#pragma once

#include <cstdint>

namespace tutti::optim::detail {

/// Scalars of an SGD update, made in double and rounded once to T.
template <class T>
struct SgdScalars {
  T learning_rate;
  T momentum;
  T weight_decay;  ///< added to the gradient times p; 0: p is not read for it
  bool has_momentum;
  bool nesterov;
  bool first;  ///< the buffer holds nothing yet: it becomes the gradient
};

/// Scalars of an Adam or AdamW update. With s = sqrt(1 - beta2^t), the textbook's
/// lr / (1 - beta1^t) * m / (sqrt(v) / s + epsilon) is step * m / (sqrt(v) + epsilon_s).
template <class T>
struct AdamScalars {
  T beta1;
  T one_minus_beta1;
  T beta2;
  T one_minus_beta2;
  T step;          ///< lr s / (1 - beta1^t)
  T epsilon_s;     ///< epsilon s
  T weight_decay;  ///< Adam's, added to the gradient times p; 0: none
  T shrink;        ///< AdamW's 1 - lr weight_decay, by which p is multiplied first; 1: none
};

/// Scalars of an Adagrad update.
template <class T>
struct AdagradScalars {
  T learning_rate;
  T epsilon;
  T weight_decay;  ///< added to the gradient times p; 0: none
};

/// Scalars of an FTRL update.
template <class T>
struct FtrlScalars {
  T learning_rate;
  T beta;
  T l1;
  T l2;
  bool first;  ///< z holds nothing yet: it follows from p
};

/// p, g, v: parameter, gradient, momentum buffer (null without momentum); n elements, not
/// overlapping.
template <class T>
using SgdKernel = void (*)(const SgdScalars<T>&, T* p, const T* g, T* v, int64_t n);

/// m, v: first and second moment.
template <class T>
using AdamKernel = void (*)(const AdamScalars<T>&, T* p, const T* g, T* m, T* v, int64_t n);

/// s: sum of squares.
template <class T>
using AdagradKernel = void (*)(const AdagradScalars<T>&, T* p, const T* g, T* s, int64_t n);

/// z, s: the linear term, sum of squares.
template <class T>
using FtrlKernel = void (*)(const FtrlScalars<T>&, T* p, const T* g, T* z, T* s, int64_t n);

template <class T>
struct KernelsOf {
  SgdKernel<T> sgd;
  AdamKernel<T> adam;
  AdagradKernel<T> adagrad;
  FtrlKernel<T> ftrl;
};

struct Kernels {
  KernelsOf<float> float32;
  KernelsOf<double> float64;
};

}  // namespace tutti::optim::detail

namespace tutti::optim::baseline {
extern const detail::Kernels kernels;
}
namespace tutti::optim::avx2 {
extern const detail::Kernels kernels;
}
namespace tutti::optim::avx512 {
extern const detail::Kernels kernels;
}
