/// Optimizer rules as kernels over plain spans.
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
#include "tutti/optim/options.h"

namespace tutti::optim {

/// State tensors of any rule, at most.
constexpr int kMostStates = 3;
/// Norms are sums over blocks of so many elements, counted from a tensor's first: slices that are
/// measured are cut at blocks alone.
constexpr int64_t kBlockElements = 1024;

/// What changes with the step. `count` is the number of updates this parameter has had, this one
/// included; powers are beta^count (of nadam: the product of its momenta).
struct StepScalars {
  double learning_rate = 0.0;
  double beta1_power = 1.0;
  double beta2_power = 1.0;
  double decay_power = 1.0;  ///< nadam: 0.96^(count momentum_decay)
  int64_t count = 0;
};

/// Sums of squares over a block.
struct Squares {
  double parameter = 0;
  double step = 0;  ///< of what moves the parameter: lars the gradient, lamb Adam's step

  Squares& operator+=(const Squares& other);
};

/// A copyable, immutable optimizer description: options and the kernel that carries it out.
class Rule {
 public:
  using Options = std::variant<SgdOptions, AdamOptions, AdamWOptions, AdagradOptions, FtrlOptions,
                               RmspropOptions, AdadeltaOptions, AdamaxOptions, NadamOptions,
                               LionOptions, LarsOptions, LambOptions>;

  /// Throws UsageError naming the field, its value and the valid range.
  explicit Rule(Options options);

  std::string_view name() const noexcept;  ///< one of rule_names()
  const Options& options() const noexcept { return options_; }
  double learning_rate() const noexcept;
  /// State tensors per parameter, each of the parameter's shape: 0 to kMostStates.
  int num_states() const noexcept { return states_; }
  /// torch's names where torch has the rule: "momentum_buffer", "exp_avg", ...
  std::string_view state_name(int state) const;
  /// What all its elements are before the first update.
  double state_start(int state) const;

  /// Scalars of the update after `previous`, at `learning_rate`. Throws UsageError for one that a
  /// step cannot use: negative, not finite, 0 with ftrl.
  StepScalars next(const StepScalars& previous, double learning_rate) const;

  /// Updates `num_elements` elements in place.
  ///
  /// dtype     float32 or float64, of parameter, gradient and states alike
  /// parameter, gradient, states[k]: start of the slice, any alignment; gradient is only read
  /// trust     what trust() gave, for rules that measure
  void update(DType dtype, void* parameter, const void* gradient, std::span<void* const> states,
              int64_t num_elements, const StepScalars& scalars, double trust = 1.0) const;

  /// lars and lamb: before update(), measure() sees all of a tensor.
  bool measures() const noexcept;
  /// Sums of squares of each block of a slice that begins at a block; lamb's moments are updated.
  /// The same bits on every instruction set. squares: one a block that the slice has a part of
  void measure(DType dtype, const void* parameter, const void* gradient,
               std::span<void* const> states, int64_t num_elements, const StepScalars& scalars,
               std::span<Squares> squares) const;
  /// By what the step of a tensor is to be multiplied, whose blocks add up to `all`.
  double trust(const Squares& all) const;

 private:
  void check(DType dtype, std::span<void* const> states, int64_t num_elements,
             const StepScalars& scalars) const;

  Options options_;
  int states_ = 0;
};

inline Rule sgd(SgdOptions options = {}) { return Rule(options); }
inline Rule adam(AdamOptions options = {}) { return Rule(options); }
inline Rule adamw(AdamWOptions options = {}) { return Rule(options); }
inline Rule adagrad(AdagradOptions options = {}) { return Rule(options); }
inline Rule ftrl(FtrlOptions options = {}) { return Rule(options); }
inline Rule rmsprop(RmspropOptions options = {}) { return Rule(options); }
inline Rule adadelta(AdadeltaOptions options = {}) { return Rule(options); }
inline Rule adamax(AdamaxOptions options = {}) { return Rule(options); }
inline Rule nadam(NadamOptions options = {}) { return Rule(options); }
inline Rule lion(LionOptions options = {}) { return Rule(options); }
inline Rule lars(LarsOptions options = {}) { return Rule(options); }
inline Rule lamb(LambOptions options = {}) { return Rule(options); }

/// Sums of squares of each block of `values` (float32 or float64), as measure() makes them.
void square_blocks(DType dtype, const void* values, int64_t num_elements, std::span<double> sums);

/// All names that rule_by_name() knows.
const std::vector<std::string>& rule_names();

/// Throws UsageError unless a step may use it: finite and >= 0.
void require_learning_rate(double learning_rate);

/// "adam" with the options' defaults and this learning rate; unknown names throw UsageError with
/// the nearest known one. A learning rate of 0 or less means the rule's default.
Rule rule_by_name(std::string_view name, double learning_rate = 0.0);

}  // namespace tutti::optim
