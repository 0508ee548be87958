/// Operators of nn::Graph that work element by element, beside those in ops.h, which says how they
/// are read. Thread rule: plain values.
#pragma once

namespace tutti::nn::op {

struct Sigmoid {};  ///< 1 / (1 + exp(-x))
/// x above 0, else slope times x.
struct LeakyRelu {
  double slope = 0.01;  ///< >= 0
};
/// x above 0, else alpha (exp(x) - 1). Clevert et al. 2015, arXiv:1511.07289.
struct Elu {
  double alpha = 1;  ///< >= 0
};
struct Selu {};  ///< 1.0507 times elu of alpha 1.6733: Klambauer et al. 2017, arXiv:1706.02515
struct Silu {};  ///< x times its sigmoid, which is swish: Ramachandran et al. 2017
struct HardSigmoid {};  ///< x / 6 + 1/2, at least 0 and at most 1
struct HardSwish {};    ///< x times its hard sigmoid: Howard et al. 2019, arXiv:1905.02244
struct Softplus {};     ///< log(1 + exp(x))
struct Mish {};         ///< x tanh(softplus(x)): Misra 2019, arXiv:1908.08681
struct Relu6 {};        ///< x, at least 0 and at most 6
struct LogSoftmax {};   ///< the logarithm of softmax, over the last dimension

struct Subtract {};  ///< the first of two inputs of one shape less the second
struct Multiply {};  ///< two inputs of one shape
struct Maximum {};   ///< the larger of two inputs of one shape, element by element
struct Minimum {};   ///< the smaller one

}  // namespace tutti::nn::op
