/// Optimizer rules as kernels over plain spans: SGD, Adam, AdamW, Adagrad, FTRL.
///
/// A Rule says what one parameter element becomes; it owns no memory. The same bits come out on
/// every instruction set and wherever a slice is cut: kernels are elementwise IEEE arithmetic
/// without contraction, with true square root and division, and a tail equal to the body.
/// Scalars that change with the step (learning rate, bias corrections) come in as StepScalars, made
/// by plain double multiplication, so that they have the same bits on every CPU too.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "tutti/base/dtype.h"

namespace tutti::optim {

/// v = momentum v + (g + weight_decay p);  p -= lr v (Nesterov: p -= lr (g + momentum v)).
/// As torch::optim::SGD without dampening: the first v is g itself.
struct SgdOptions {
  double learning_rate = 0.01;  ///< > 0
  double momentum = 0.0;        ///< in [0, 1)
  bool nesterov = false;        ///< needs momentum > 0
  double weight_decay = 0.0;    ///< >= 0, added to the gradient
};

/// Kingma & Ba 2015, arXiv:1412.6980, with bias correction.
struct AdamOptions {
  double learning_rate = 1e-3;  ///< > 0
  double beta1 = 0.9;           ///< in [0, 1)
  double beta2 = 0.999;         ///< in [0, 1)
  double epsilon = 1e-8;        ///< > 0, added after the square root
  double weight_decay = 0.0;    ///< >= 0, added to the gradient
};

/// Loshchilov & Hutter 2019, arXiv:1711.05101: weight decay applied to the parameter.
struct AdamWOptions {
  double learning_rate = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
  double weight_decay = 1e-2;
};

/// Duchi, Hazan & Singer 2011, JMLR 12:2121, diagonal: s += g^2; p -= lr g / (sqrt(s) + epsilon).
struct AdagradOptions {
  double learning_rate = 0.01;
  double initial_accumulator = 0.0;  ///< >= 0: where s begins
  double epsilon = 1e-10;            ///< > 0
  double weight_decay = 0.0;         ///< >= 0, added to the gradient
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

/// What changes with the step. `count` is the number of updates this parameter has had, this one
/// included; powers are beta^count.
struct StepScalars {
  double learning_rate = 0.0;
  double beta1_power = 1.0;
  double beta2_power = 1.0;
  int64_t count = 0;

  /// Scalars of the next update: count + 1, powers multiplied once more.
  StepScalars next(double learning_rate, double beta1, double beta2) const;
};

/// A copyable, immutable optimizer description: options and the kernel that carries it out.
class Rule {
 public:
  using Options = std::variant<SgdOptions, AdamOptions, AdamWOptions, AdagradOptions, FtrlOptions>;

  /// Throws UsageError naming the field, its value and the valid range.
  explicit Rule(Options options);

  std::string_view name() const noexcept;  ///< "sgd", "adam", "adamw", "adagrad", "ftrl"
  const Options& options() const noexcept { return options_; }
  double learning_rate() const noexcept;
  /// State tensors per parameter, each of the parameter's shape: 0, 1 or 2.
  int num_states() const noexcept;
  /// "momentum_buffer"; "exp_avg", "exp_avg_sq"; "sum" (torch's names); "linear", "accumulator".
  std::string_view state_name(int state) const noexcept;
  /// What all its elements are before the first update.
  double state_start(int state) const noexcept;

  /// Scalars of the update after `previous`, at `learning_rate`. Throws UsageError for one that a
  /// step cannot use: negative, not finite, 0 with ftrl.
  StepScalars next(const StepScalars& previous, double learning_rate) const;

  /// Updates `num_elements` elements in place.
  ///
  /// dtype     float32 or float64, of parameter, gradient and states alike
  /// parameter, gradient, states[k]: start of the slice, any alignment; gradient is only read
  void update(DType dtype, void* parameter, const void* gradient, std::span<void* const> states,
              int64_t num_elements, const StepScalars& scalars) const;

 private:
  Options options_;
};

inline Rule sgd(SgdOptions options = {}) { return Rule(options); }
inline Rule adam(AdamOptions options = {}) { return Rule(options); }
inline Rule adamw(AdamWOptions options = {}) { return Rule(options); }
inline Rule adagrad(AdagradOptions options = {}) { return Rule(options); }
inline Rule ftrl(FtrlOptions options = {}) { return Rule(options); }

/// All names that rule_by_name() knows.
const std::vector<std::string>& rule_names();

/// Throws UsageError unless a step may use it: finite and >= 0.
void require_learning_rate(double learning_rate);

/// "adam" with the options' defaults and this learning rate; unknown names throw UsageError with
/// the nearest known one. A learning rate of 0 or less means the rule's default.
Rule rule_by_name(std::string_view name, double learning_rate = 0.0);

}  // namespace tutti::optim
