/// WholeRule: optimizers that update a parameter as a whole, by its shape: Muon and Adafactor.
///
/// A Rule updates elements, wherever a parameter is cut; these need all of a matrix. So each
/// replica makes the whole update of its own copy, by the same sums and with the same bits, and
/// whoever has pieces of parameters (servers, shards, meshes) or other arithmetic (devices,
/// compiled steps) refuses them by name. optim::muon() and optim::adafactor()
/// (tutti/sync/replicated/whole_rules.h) make what Model::compile() and Optimizer take. Without
/// LibTorch. Thread rule: values; a WholeParameter is used by one thread at a time.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "tutti/base/dtype.h"
#include "tutti/optim/rule.h"

namespace tutti::optim {

/// Jordan et al. 2024 (kellerjordan.github.io/posts/muon), as torch.optim.Muon: v = momentum v +
/// (1 - momentum) g; u = v (Nesterov: momentum v + (1 - momentum) g); of u the nearest matrix with
/// orthogonal rows or columns, by Newton-Schulz steps; p = (1 - lr weight_decay) p - lr f u with f
/// = sqrt(max(1, rows / columns)). A parameter of more than two dimensions is the matrix [first,
/// all others]. Steps are in the parameter's own type (PyTorch's in bfloat16).
///
/// What is no matrix (a bias, a norm), and what `others` names, goes by AdamW. Its rate follows the
/// step's: times adamw.learning_rate / learning_rate.
struct MuonOptions {
  double learning_rate = 1e-3;   ///< > 0
  double momentum = 0.95;        ///< in [0, 1)
  bool nesterov = true;          ///< needs momentum > 0
  int64_t steps = 5;             ///< of Newton-Schulz, 1 to 99
  double epsilon = 1e-7;         ///< > 0: the least norm that u is divided by
  double weight_decay = 0.1;     ///< decoupled, >= 0
  bool match_rms_adamw = false;  ///< f = 0.2 sqrt(max(rows, columns)): with rates found for AdamW
  AdamWOptions adamw{};
  /// Patterns (optim::fits) of matrices that go by AdamW: embeddings and the head. Of others than
  /// these two, each must fit a parameter.
  std::vector<std::string> others = {"*embed*", "*head*"};
};

/// Shazeer & Stern 2018, arXiv:1804.04235, as torch.optim.Adafactor: with w = t^beta2_decay, second
/// moments of rows and columns of the last two dimensions (of a vector: of each element) move by w
/// towards the means of g^2; u = g / sqrt(their product over the mean of the rows'), made no longer
/// than rms(u) = clip; p = (1 - lr weight_decay) p - max(epsilon2, rms(p)) min(lr, 1 / sqrt(t)) u.
struct AdafactorOptions {
  double learning_rate = 1e-2;  ///< > 0: the most that a step is, relative to rms(p)
  double beta2_decay = -0.8;    ///< in [-10, 0]
  double epsilon1 = 0;          ///< >= 0; 0: the rounding of the parameter's type
  double epsilon2 = 1e-3;       ///< > 0
  double clip = 1;              ///< >= 1
  double weight_decay = 0;      ///< decoupled, >= 0
};

/// A copyable, immutable description, as Rule.
class WholeRule {
 public:
  using Options = std::variant<MuonOptions, AdafactorOptions>;

  /// Throws UsageError naming the field, its value and the valid range.
  explicit WholeRule(Options options);

  std::string_view name() const noexcept;  ///< one of whole_rule_names()
  const Options& options() const noexcept { return options_; }
  double learning_rate() const noexcept;
  /// Name and every field: what ranks compare, and a resumed training with its checkpoint.
  std::string words() const;
  /// "optimizer muon, which needs whole parameters": as Recipe::more_than_a_rule().
  std::string more_than_a_rule() const;
  /// Throws UsageError for a pattern of `others` that fits none of these.
  void require_fitting(std::span<const std::string> parameters) const;

 private:
  Options options_;
};

/// Calls visit("name", field) for every number of some options; of Muon's AdamW as "adamw_beta1".
template <class Options, class Visit>
void visit_whole_fields(Options& o, Visit&& visit) {
  visit("learning_rate", o.learning_rate);
  if constexpr (requires { o.momentum; }) {
    visit("momentum", o.momentum);
    visit("nesterov", o.nesterov);
    visit("steps", o.steps);
    visit("epsilon", o.epsilon);
    visit("match_rms_adamw", o.match_rms_adamw);
    visit("adamw_learning_rate", o.adamw.learning_rate);
    visit("adamw_beta1", o.adamw.beta1);
    visit("adamw_beta2", o.adamw.beta2);
    visit("adamw_epsilon", o.adamw.epsilon);
    visit("adamw_weight_decay", o.adamw.weight_decay);
    visit("adamw_amsgrad", o.adamw.amsgrad);
  } else {
    visit("beta2_decay", o.beta2_decay);
    visit("epsilon1", o.epsilon1);
    visit("epsilon2", o.epsilon2);
    visit("clip", o.clip);
  }
  visit("weight_decay", o.weight_decay);
}

const std::vector<std::string>& whole_rule_names();  ///< "muon", "adafactor"
/// With the options' defaults; unknown names throw UsageError with the nearest known one.
WholeRule whole_rule_by_name(std::string_view name);

/// A tensor that an optimizer keeps, zero before the first update.
struct WholeState {
  std::string name;  ///< torch's: "momentum_buffer", "row_var", ...
  std::vector<int64_t> shape;
};

/// What a rule does with one parameter.
class WholeParameter {
 public:
  WholeParameter(const WholeRule& rule, std::string_view name, std::vector<int64_t> shape);

  const std::vector<WholeState>& states() const noexcept { return states_; }
  /// Scalars of the update after `previous`; the step's learning rate is `learning_rate`.
  StepScalars next(const StepScalars& previous, double learning_rate) const;
  /// Updates the whole parameter in place, with the same bits on every CPU.
  ///
  /// dtype  float32 or float64, of parameter, gradient and states, in the order of states()
  void update(DType dtype, void* parameter, const void* gradient, std::span<void* const> states,
              const StepScalars& scalars) const;

 private:
  WholeRule::Options options_;
  std::vector<int64_t> shape_;
  bool by_adamw_ = false;
  Rule adamw_;
  std::vector<WholeState> states_;
};

}  // namespace tutti::optim
