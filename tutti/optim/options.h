/// The optimizers' options, and their fields by name.
///
/// p parameter, g gradient, lr learning rate; all elementwise unless said. A weight decay is added
/// to the gradient (g + weight_decay p) unless it says "decoupled": then p is first multiplied by
/// 1 - lr weight_decay.
#pragma once

#include <string_view>
#include <type_traits>

namespace tutti::optim {

/// v = momentum v + (g + weight_decay p);  p -= lr v (Nesterov: p -= lr (g + momentum v)).
/// As torch::optim::SGD without dampening: the first v is g itself.
struct SgdOptions {
  double learning_rate = 0.01;  ///< > 0
  double momentum = 0.0;        ///< in [0, 1)
  bool nesterov = false;        ///< needs momentum > 0
  double weight_decay = 0.0;    ///< >= 0
};

/// Kingma & Ba 2015, arXiv:1412.6980, with bias correction. amsgrad: Reddi, Kale & Kumar 2018,
/// arXiv:1904.09237: the largest second moment so far in place of the last, one state more.
struct AdamOptions {
  double learning_rate = 1e-3;  ///< > 0
  double beta1 = 0.9;           ///< in [0, 1)
  double beta2 = 0.999;         ///< in [0, 1)
  double epsilon = 1e-8;        ///< > 0, added after the square root
  double weight_decay = 0.0;    ///< >= 0
  bool amsgrad = false;
};

/// Loshchilov & Hutter 2019, arXiv:1711.05101.
struct AdamWOptions {
  double learning_rate = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
  double weight_decay = 1e-2;  ///< decoupled
  bool amsgrad = false;        ///< as in AdamOptions
};

/// Duchi, Hazan & Singer 2011, JMLR 12:2121, diagonal: s += g^2; p -= lr g / (sqrt(s) + epsilon).
struct AdagradOptions {
  double learning_rate = 0.01;
  double initial_accumulator = 0.0;  ///< >= 0: where s begins
  double epsilon = 1e-10;            ///< > 0
  double weight_decay = 0.0;         ///< >= 0
};

/// FTRL-Proximal, McMahan et al. 2013, doi:10.1145/2487575.2488200, algorithm 1, a parameter an
/// element: n += g^2; z += g - (sqrt(n) - sqrt(n before)) / lr p; p = 0 where |z| <= l1, else
/// -(z - sign(z) l1) / ((beta + sqrt(n)) / lr + l2). The first z is the one that gives the
/// parameter as it is: 0 for 0, as there; a network goes on from its initial weights.
struct FtrlOptions {
  double learning_rate = 0.01;       ///< > 0, also in every step
  double beta = 1.0;                 ///< >= 0
  double l1 = 0.0;                   ///< >= 0
  double l2 = 0.0;                   ///< >= 0
  double initial_accumulator = 0.1;  ///< > 0: where n begins
};

/// Hinton 2012 (lecture 6e of his course), as torch.optim.RMSprop: s = rho s + (1 - rho) g^2;
/// u = g / (sqrt(s) + epsilon); p -= lr u, with momentum b = momentum b + u; p -= lr b. Centred
/// (Graves 2013, arXiv:1308.0850): a = rho a + (1 - rho) g, and s - a^2, at least 0, in place of s.
struct RmspropOptions {
  double learning_rate = 0.01;
  double rho = 0.99;          ///< in [0, 1)
  double momentum = 0.0;      ///< in [0, 1)
  double epsilon = 1e-8;      ///< > 0
  bool centered = false;      ///< one state more
  double weight_decay = 0.0;  ///< >= 0
};

/// Zeiler 2012, arXiv:1212.5701: s = rho s + (1 - rho) g^2; d = sqrt(a + epsilon) / sqrt(s +
/// epsilon) g; a = rho a + (1 - rho) d^2; p -= lr d.
struct AdadeltaOptions {
  double learning_rate = 1.0;
  double rho = 0.9;       ///< in [0, 1)
  double epsilon = 1e-6;  ///< > 0
  double weight_decay = 0.0;
};

/// Kingma & Ba 2015, section 7.1: u = max(beta2 u, |g| + epsilon) in place of Adam's second moment.
struct AdamaxOptions {
  double learning_rate = 2e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
  double weight_decay = 0.0;
};

/// Dozat 2016 (ICLR workshop, "Incorporating Nesterov Momentum into Adam"), as torch.optim.NAdam:
/// momentum of step t is beta1 (1 - 0.96^(t momentum_decay) / 2).
struct NadamOptions {
  double learning_rate = 2e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
  double momentum_decay = 4e-3;  ///< in [0, 1]
  double weight_decay = 0.0;
};

/// Chen et al. 2023, arXiv:2302.06675: p -= lr sign(beta1 m + (1 - beta1) g); then m = beta2 m +
/// (1 - beta2) g.
struct LionOptions {
  double learning_rate = 1e-4;
  double beta1 = 0.9;
  double beta2 = 0.99;
  double weight_decay = 0.0;  ///< decoupled
};

/// You, Gitman & Ginsburg 2017, arXiv:1708.03888: SGD with momentum whose rate is lr times
/// trust |p| / (|g| + weight_decay |p| + epsilon), norms over the tensor; times 1 where a norm is
/// 0.
struct LarsOptions {
  double learning_rate = 0.1;
  double momentum = 0.9;
  double weight_decay = 0.0;
  double trust = 1e-3;    ///< > 0
  double epsilon = 1e-8;  ///< > 0
};

/// You et al. 2020, arXiv:1904.00962: Adam's step u + weight_decay p, with bias correction, made as
/// long as the tensor: p -= lr |p| / |step| step; times 1 where a norm is 0.
struct LambOptions {
  double learning_rate = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-6;
  double weight_decay = 0.0;
};

/// Whether checkpoints and snapshots of version 0.1 have no such field: it is off there, and is
/// written only where it is on, so that they read as before.
constexpr bool is_later_field(std::string_view name) { return name == "amsgrad"; }

/// Calls visit("name", field) for every field of some options: whoever writes, reads or compares
/// them takes this one list. `o` may be const.
template <class Options, class Visit>
void visit_fields(Options& o, Visit&& visit) {
  visit("learning_rate", o.learning_rate);
  if constexpr (requires { o.momentum; }) visit("momentum", o.momentum);
  if constexpr (requires { o.nesterov; }) visit("nesterov", o.nesterov);
  if constexpr (requires { o.rho; }) visit("rho", o.rho);
  if constexpr (requires { o.beta; }) visit("beta", o.beta);
  if constexpr (requires { o.beta1; }) visit("beta1", o.beta1);
  if constexpr (requires { o.beta2; }) visit("beta2", o.beta2);
  if constexpr (requires { o.momentum_decay; }) visit("momentum_decay", o.momentum_decay);
  if constexpr (requires { o.l1; }) visit("l1", o.l1);
  if constexpr (requires { o.l2; }) visit("l2", o.l2);
  if constexpr (requires { o.trust; }) visit("trust", o.trust);
  if constexpr (requires { o.initial_accumulator; })
    visit("initial_accumulator", o.initial_accumulator);
  if constexpr (requires { o.epsilon; }) visit("epsilon", o.epsilon);
  if constexpr (requires { o.centered; }) visit("centered", o.centered);
  if constexpr (requires { o.weight_decay; }) visit("weight_decay", o.weight_decay);
  if constexpr (requires { o.amsgrad; }) visit("amsgrad", o.amsgrad);
}

}  // namespace tutti::optim
