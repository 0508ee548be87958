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

/// Scalars of an RMSprop update.
template <class T>
struct RmspropScalars {
  T learning_rate;
  T rho;
  T one_minus_rho;
  T momentum;
  T epsilon;
  T weight_decay;  ///< 0: none
};

/// Scalars of an Adadelta update.
template <class T>
struct AdadeltaScalars {
  T learning_rate;
  T rho;
  T one_minus_rho;
  T epsilon;
  T weight_decay;  ///< 0: none
};

/// Scalars of an Adamax update.
template <class T>
struct AdamaxScalars {
  T beta1;
  T one_minus_beta1;
  T beta2;
  T step;  ///< lr / (1 - beta1^t)
  T epsilon;
  T weight_decay;  ///< 0: none
};

/// Scalars of a Nadam update; s as of Adam.
template <class T>
struct NadamScalars {
  T beta1;
  T one_minus_beta1;
  T beta2;
  T one_minus_beta2;
  T of_gradient;  ///< lr s (1 - mu) / (1 - product of momenta)
  T of_moment;    ///< lr s mu' / (1 - product up to the next), mu' of the next step
  T epsilon_s;
  T weight_decay;  ///< 0: none
};

/// Scalars of a Lion update.
template <class T>
struct LionScalars {
  T learning_rate;
  T beta1;
  T one_minus_beta1;
  T beta2;
  T one_minus_beta2;
  T shrink;  ///< 1 - lr weight_decay
};

/// Scalars of a LARS update.
template <class T>
struct LarsScalars {
  T learning_rate;
  T momentum;
  T weight_decay;
  T trust;
  bool first;  ///< the buffer holds nothing yet
};

/// Scalars of LAMB. With s as of Adam, its step is inverse m / (sqrt(v) + epsilon_s) + decay p.
template <class T>
struct LambScalars {
  T beta1;
  T one_minus_beta1;
  T beta2;
  T one_minus_beta2;
  T inverse;  ///< s / (1 - beta1^t)
  T epsilon_s;
  T weight_decay;
  T rate;  ///< lr trust
};

/// Sums of squares of one block.
struct BlockSquares {
  double parameter;
  double step;
};

/// p, g: parameter, gradient; then the states in the order of Rule::state_name, null where the
/// options want none; n elements, not overlapping. h: a second gradient, of which g + h is the one
/// to be used; null: there is none.
template <class T>
using SgdKernel = void (*)(const SgdScalars<T>&, T* p, const T* g, const T* h, T* v, int64_t n);
template <class T>
using AdamKernel = void (*)(const AdamScalars<T>&, T* p, const T* g, const T* h, T* m, T* v, T* w,
                            int64_t n);
template <class T>
using AdagradKernel = void (*)(const AdagradScalars<T>&, T* p, const T* g, T* s, int64_t n);
template <class T>
using FtrlKernel = void (*)(const FtrlScalars<T>&, T* p, const T* g, T* z, T* s, int64_t n);
template <class T>
using RmspropKernel = void (*)(const RmspropScalars<T>&, T* p, const T* g, T* s, T* a, T* b,
                               int64_t n);
template <class T>
using AdadeltaKernel = void (*)(const AdadeltaScalars<T>&, T* p, const T* g, T* s, T* a, int64_t n);
template <class T>
using AdamaxKernel = void (*)(const AdamaxScalars<T>&, T* p, const T* g, T* m, T* u, int64_t n);
template <class T>
using NadamKernel = void (*)(const NadamScalars<T>&, T* p, const T* g, T* m, T* v, int64_t n);
template <class T>
using LionKernel = void (*)(const LionScalars<T>&, T* p, const T* g, T* m, int64_t n);
template <class T>
using LarsKernel = void (*)(const LarsScalars<T>&, T* p, const T* g, T* v, int64_t n);
/// Updates the moments of a block; then LambKernel the parameters.
template <class T>
using LambMeasure = BlockSquares (*)(const LambScalars<T>&, const T* p, const T* g, T* m, T* v,
                                     int64_t n);
template <class T>
using LambKernel = void (*)(const LambScalars<T>&, T* p, const T* m, const T* v, int64_t n);
/// Of a block, in one order on every instruction set.
template <class T>
using SquareKernel = double (*)(const T* x, int64_t n);

template <class T>
struct KernelsOf {
  SgdKernel<T> sgd;
  AdamKernel<T> adam;
  AdagradKernel<T> adagrad;
  FtrlKernel<T> ftrl;
  RmspropKernel<T> rmsprop;
  AdadeltaKernel<T> adadelta;
  AdamaxKernel<T> adamax;
  NadamKernel<T> nadam;
  LionKernel<T> lion;
  LarsKernel<T> lars;
  LambMeasure<T> lamb_measure;
  LambKernel<T> lamb;
  SquareKernel<T> square;
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
