#include "tutti/optim/rule.h"

#include <cmath>
#include <iterator>

#include "tutti/base/check.h"
#include "tutti/base/cpu_variant.h"
#include "tutti/base/suggest.h"
#include "tutti/optim/kernels/dispatch.h"

namespace tutti::optim {
namespace {

// Each test is written so that NaN fails it.
void require(bool in_range, std::string_view rule, std::string_view field, double value,
             std::string_view range) {
  if (in_range) return;
  throw UsageError(
      fmt::format("optimizer {}: {} = {} is out of range; expected {}", rule, field, value, range));
}

void require_positive(std::string_view rule, std::string_view field, double value) {
  require(value > 0 && std::isfinite(value), rule, field, value, "a finite number > 0");
}

void require_not_negative(std::string_view rule, std::string_view field, double value) {
  require(value >= 0 && std::isfinite(value), rule, field, value, "a finite number >= 0");
}

void require_fraction(std::string_view rule, std::string_view field, double value) {
  require(value >= 0 && value < 1, rule, field, value, "0 <= " + std::string(field) + " < 1");
}

void validate(const SgdOptions& options) {
  require_positive("sgd", "learning_rate", options.learning_rate);
  require_fraction("sgd", "momentum", options.momentum);
  require_not_negative("sgd", "weight_decay", options.weight_decay);
  if (options.nesterov)
    require(options.momentum > 0, "sgd", "momentum", options.momentum,
            "momentum > 0 when nesterov is on");
}

template <class AdamLike>
void validate_adam(std::string_view rule, const AdamLike& options) {
  require_positive(rule, "learning_rate", options.learning_rate);
  require_fraction(rule, "beta1", options.beta1);
  require_fraction(rule, "beta2", options.beta2);
  require_positive(rule, "epsilon", options.epsilon);
  require_not_negative(rule, "weight_decay", options.weight_decay);
}

void validate(const AdamOptions& options) { validate_adam("adam", options); }
void validate(const AdamWOptions& options) { validate_adam("adamw", options); }

void validate(const AdagradOptions& options) {
  require_positive("adagrad", "learning_rate", options.learning_rate);
  require_not_negative("adagrad", "initial_accumulator", options.initial_accumulator);
  require_positive("adagrad", "epsilon", options.epsilon);
  require_not_negative("adagrad", "weight_decay", options.weight_decay);
}

void validate(const FtrlOptions& options) {
  require_positive("ftrl", "learning_rate", options.learning_rate);
  require_not_negative("ftrl", "beta", options.beta);
  require_not_negative("ftrl", "l1", options.l1);
  require_not_negative("ftrl", "l2", options.l2);
  require_positive("ftrl", "initial_accumulator", options.initial_accumulator);
}

}  // namespace

// In the order of Rule::Options.
const std::vector<std::string>& rule_names() {
  static const std::vector<std::string> names = {"sgd", "adam", "adamw", "adagrad", "ftrl"};
  return names;
}

void require_learning_rate(double learning_rate) {
  if (!(learning_rate >= 0 && std::isfinite(learning_rate)))
    throw UsageError(fmt::format("learning_rate {} is out of range; expected a finite number >= 0",
                                 learning_rate));
}

StepScalars StepScalars::next(double learning_rate, double beta1, double beta2) const {
  return {learning_rate, beta1_power * beta1, beta2_power * beta2, count + 1};
}

Rule::Rule(Options options) : options_(options) {
  std::visit([](const auto& chosen) { validate(chosen); }, options_);
}

std::string_view Rule::name() const noexcept { return rule_names()[options_.index()]; }

double Rule::learning_rate() const noexcept {
  return std::visit([](const auto& chosen) { return chosen.learning_rate; }, options_);
}

int Rule::num_states() const noexcept {
  if (const auto* sgd = std::get_if<SgdOptions>(&options_)) return sgd->momentum != 0 ? 1 : 0;
  return std::holds_alternative<AdagradOptions>(options_) ? 1 : 2;
}

std::string_view Rule::state_name(int state) const noexcept {
  if (std::holds_alternative<SgdOptions>(options_)) return "momentum_buffer";
  if (std::holds_alternative<AdagradOptions>(options_)) return "sum";
  if (std::holds_alternative<FtrlOptions>(options_)) return state == 0 ? "linear" : "accumulator";
  return state == 0 ? "exp_avg" : "exp_avg_sq";
}

double Rule::state_start(int state) const noexcept {
  if (const auto* adagrad = std::get_if<AdagradOptions>(&options_))
    return adagrad->initial_accumulator;
  const auto* ftrl = std::get_if<FtrlOptions>(&options_);
  return ftrl != nullptr && state == 1 ? ftrl->initial_accumulator : 0.0;
}

StepScalars Rule::next(const StepScalars& previous, double learning_rate) const {
  require_learning_rate(learning_rate);
  if (learning_rate == 0 && std::holds_alternative<FtrlOptions>(options_))
    throw UsageError("optimizer ftrl: learning_rate 0 is out of range; its parameters would be 0");
  return std::visit(
      [&](const auto& chosen) {
        if constexpr (requires { chosen.beta1; })
          return previous.next(learning_rate, chosen.beta1, chosen.beta2);
        else
          return previous.next(learning_rate, 1.0, 1.0);
      },
      options_);
}

void Rule::update(DType dtype, void* parameter, const void* gradient, std::span<void* const> states,
                  int64_t num_elements, const StepScalars& scalars) const {
  static const detail::Kernels& kernels = detail::kernels_for(best_variant());
  if (dtype != DType::float32 && dtype != DType::float64) [[unlikely]]
    throw UsageError(fmt::format("optimizer {}: parameters are {}; expected float32 or float64",
                                 name(), tutti::name_of(dtype)));
  TUTTI_CHECK(std::ssize(states) == num_states() && scalars.count >= 1 && num_elements >= 0,
              "{}: {} states of {}, update {}, {} elements", name(), states.size(), num_states(),
              scalars.count, num_elements);
  if (num_elements == 0) return;
  detail::update_with(kernels, options_, dtype, parameter, gradient, states, num_elements, scalars);
}

Rule rule_by_name(std::string_view name, double learning_rate) {
  const auto with = [&](auto options) {
    // Written so that NaN is not taken for "the default".
    if (!(learning_rate <= 0)) options.learning_rate = learning_rate;
    return Rule(options);
  };
  if (name == "sgd") return with(SgdOptions{});
  if (name == "adam") return with(AdamOptions{});
  if (name == "adamw") return with(AdamWOptions{});
  if (name == "adagrad") return with(AdagradOptions{});
  if (name == "ftrl") return with(FtrlOptions{});
  throw UsageError(unknown_message("optimizer", name, rule_names()));
}

}  // namespace tutti::optim
