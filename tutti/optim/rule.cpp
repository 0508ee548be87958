#include "tutti/optim/rule.h"

#include <array>
#include <cmath>
#include <iterator>
#include <limits>
#include <type_traits>

#include "tutti/base/cpu_variant.h"
#include "tutti/base/detail/check.h"
#include "tutti/base/suggest.h"
#include "tutti/base/typed.h"
#include "tutti/optim/kernels/dispatch.h"

namespace tutti::optim {
namespace {

const detail::Kernels& best_kernels() {
  static const detail::Kernels& kernels = detail::kernels_for(best_variant());
  return kernels;
}

// Each test is written so that NaN fails it.
void require(bool in_range, std::string_view rule, std::string_view field, double value,
             std::string_view range) {
  if (in_range) return;
  throw UsageError(
      fmt::format("optimizer {}: {} = {} is out of range; expected {}", rule, field, value, range));
}

// Kernels compute in float32 with parameters of that type: what is smaller would be 0 there.
void require_positive(std::string_view rule, std::string_view field, double value) {
  require(value > 0 && std::isfinite(value), rule, field, value, "a finite number > 0");
  require(fits_float32(value), rule, field, value, kFloat32Range);
}

// They weigh parameters against gradients: beside more than this nothing is left of the latter.
constexpr double kMostWeight = 1e12;

void require_not_negative(std::string_view rule, std::string_view field, double value) {
  require(value >= 0 && std::isfinite(value), rule, field, value, "a finite number >= 0");
  require(fits_float32(value) && value <= kMostWeight, rule, field, value,
          "0, or a number that float32 keeps, 1.2e-38 to 1e12");
}

void require_fraction(std::string_view rule, std::string_view field, double value) {
  require(value >= 0 && value < 1, rule, field, value, "0 <= " + std::string(field) + " < 1");
}

// In the order of Rule::Options.
constexpr std::array<std::string_view, std::variant_size_v<Rule::Options>> kNames = {
    "sgd",      "adam",   "adamw", "adagrad", "ftrl", "rmsprop",
    "adadelta", "adamax", "nadam", "lion",    "lars", "lamb"};

// Every field of every rule has the range of its name, but for what follows below.
void validate_field(std::string_view rule, std::string_view field, double value) {
  if (field == "learning_rate" || field == "epsilon" || field == "trust")
    require_positive(rule, field, value);
  else if (field == "momentum" || field == "rho" || field == "beta1" || field == "beta2")
    require_fraction(rule, field, value);
  else
    require_not_negative(rule, field, value);
}

template <class Options>
void validate(std::string_view rule, const Options& options) {
  visit_fields(options, [&]<class Field>(const char* name, const Field& value) {
    if constexpr (std::is_same_v<Field, double>) validate_field(rule, name, value);
  });
  if constexpr (requires { options.nesterov; })
    if (options.nesterov)
      require(options.momentum > 0, rule, "momentum", options.momentum,
              "momentum > 0 when nesterov is on");
  if constexpr (std::is_same_v<Options, FtrlOptions>)
    require_positive(rule, "initial_accumulator", options.initial_accumulator);
  if constexpr (std::is_same_v<Options, NadamOptions>)
    require(options.momentum_decay <= 1, rule, "momentum_decay", options.momentum_decay,
            "0 <= momentum_decay <= 1");
}

// A state tensor: its name, and what its elements are before the first update.
struct State {
  std::string_view name;
  double start = 0;
};
using States = std::vector<State>;

States states_of(const SgdOptions& o) {
  return o.momentum != 0 ? States{{"momentum_buffer"}} : States{};
}
States states_of(const AdagradOptions& o) { return {{"sum", o.initial_accumulator}}; }
States states_of(const FtrlOptions& o) {
  return {{"linear"}, {"accumulator", o.initial_accumulator}};
}
States states_of(const RmspropOptions& o) {
  States states{{"square_avg"}};
  if (o.centered) states.push_back({"grad_avg"});
  if (o.momentum != 0) states.push_back({"momentum_buffer"});
  return states;
}
States states_of(const AdadeltaOptions&) { return {{"square_avg"}, {"acc_delta"}}; }
States states_of(const AdamaxOptions&) { return {{"exp_avg"}, {"exp_inf"}}; }
template <class AdamLike>
States moments_of(const AdamLike& o) {
  States states{{"exp_avg"}, {"exp_avg_sq"}};
  if (o.amsgrad) states.push_back({"max_exp_avg_sq"});
  return states;
}
States states_of(const AdamOptions& o) { return moments_of(o); }
States states_of(const AdamWOptions& o) { return moments_of(o); }
States states_of(const LionOptions&) { return {{"exp_avg"}}; }
States states_of(const LarsOptions&) { return {{"momentum_buffer"}}; }
template <class AdamLike>
States states_of(const AdamLike&) {
  return {{"exp_avg"}, {"exp_avg_sq"}};
}

States states_of_any(const Rule::Options& options) {
  return std::visit([](const auto& chosen) { return states_of(chosen); }, options);
}

}  // namespace

const std::vector<std::string>& rule_names() {
  static const std::vector<std::string> names(kNames.begin(), kNames.end());
  return names;
}

void require_learning_rate(double learning_rate) {
  // A schedule may end at a rate that float32 makes 0.
  if (!(learning_rate >= 0 && learning_rate <= std::numeric_limits<float>::max()))
    throw UsageError(
        fmt::format("learning_rate {} is out of range; expected a number >= 0 that "
                    "float32 has",
                    learning_rate));
}

Squares& Squares::operator+=(const Squares& other) {
  parameter += other.parameter;
  step += other.step;
  return *this;
}

Rule::Rule(Options options) : options_(options) {
  std::visit([this](const auto& chosen) { validate(name(), chosen); }, options_);
  states_ = static_cast<int>(states_of_any(options_).size());
}

std::string_view Rule::name() const noexcept { return kNames[options_.index()]; }

double Rule::learning_rate() const noexcept {
  return std::visit([](const auto& chosen) { return chosen.learning_rate; }, options_);
}

std::string_view Rule::state_name(int state) const {
  return states_of_any(options_).at(static_cast<size_t>(state)).name;
}

double Rule::state_start(int state) const {
  return states_of_any(options_).at(static_cast<size_t>(state)).start;
}

StepScalars Rule::next(const StepScalars& previous, double learning_rate) const {
  require_learning_rate(learning_rate);
  if (learning_rate == 0 && std::holds_alternative<FtrlOptions>(options_))
    throw UsageError("optimizer ftrl: learning_rate 0 is out of range; its parameters would be 0");
  StepScalars next = previous;
  next.learning_rate = learning_rate;
  ++next.count;
  std::visit(
      [&]<class Chosen>(const Chosen& chosen) {
        if constexpr (requires { chosen.beta2; }) next.beta2_power *= chosen.beta2;
        if constexpr (std::is_same_v<Chosen, NadamOptions>) {
          next.decay_power *= detail::nadam_decay(chosen);
          next.beta1_power *= detail::nadam_momentum(chosen, next.decay_power);
        } else if constexpr (requires { chosen.beta1; }) {
          next.beta1_power *= chosen.beta1;
        }
      },
      options_);
  return next;
}

void Rule::check(DType dtype, std::span<void* const> states, int64_t num_elements,
                 const StepScalars& scalars) const {
  if (dtype != DType::float32 && dtype != DType::float64) [[unlikely]]
    throw UsageError(fmt::format("optimizer {}: parameters are {}; expected float32 or float64",
                                 name(), tutti::name_of(dtype)));
  TUTTI_CHECK(std::ssize(states) == num_states() && scalars.count >= 1 && num_elements >= 0,
              "{}: {} states of {}, update {}, {} elements", name(), states.size(), num_states(),
              scalars.count, num_elements);
}

void Rule::update(DType dtype, void* parameter, const void* gradient, std::span<void* const> states,
                  int64_t num_elements, const StepScalars& scalars, double trust) const {
  check(dtype, states, num_elements, scalars);
  if (num_elements == 0) return;
  detail::update_with(best_kernels(), options_, dtype, parameter, gradient, states, num_elements,
                      scalars, trust);
}

bool Rule::measures() const noexcept {
  return std::holds_alternative<LarsOptions>(options_) ||
         std::holds_alternative<LambOptions>(options_);
}

void Rule::measure(DType dtype, const void* parameter, const void* gradient,
                   std::span<void* const> states, int64_t num_elements, const StepScalars& scalars,
                   std::span<Squares> squares) const {
  check(dtype, states, num_elements, scalars);
  TUTTI_CHECK(measures() && std::ssize(squares) * kBlockElements >= num_elements,
              "{}: {} blocks for {} elements", name(), squares.size(), num_elements);
  detail::measure_with(best_kernels(), options_, dtype, parameter, gradient, states, num_elements,
                       scalars, squares);
}

double Rule::trust(const Squares& all) const {
  const double parameter = std::sqrt(all.parameter);
  const double step = std::sqrt(all.step);
  if (!(parameter > 0 && step > 0)) return 1;
  const auto* const lars = std::get_if<LarsOptions>(&options_);
  if (lars == nullptr) return parameter / step;
  return lars->trust * parameter / (step + lars->weight_decay * parameter + lars->epsilon);
}

void square_blocks(DType dtype, const void* values, int64_t num_elements, std::span<double> sums) {
  TUTTI_CHECK(std::ssize(sums) * kBlockElements >= num_elements, "{} blocks for {} elements",
              sums.size(), num_elements);
  detail::square_blocks_with(best_kernels(), dtype, values, num_elements, sums);
}

namespace {

template <size_t index = 0>
Rule::Options default_options(std::string_view name) {
  if constexpr (index == std::variant_size_v<Rule::Options>)
    throw UsageError(unknown_message("optimizer", name, rule_names()));
  else
    return name == kNames[index] ? Rule::Options(std::in_place_index<index>)
                                 : default_options<index + 1>(name);
}

}  // namespace

Rule rule_by_name(std::string_view name, double learning_rate) {
  Rule::Options options = default_options(name);
  // Written so that NaN is not taken for "the default".
  if (!(learning_rate <= 0))
    std::visit([&](auto& chosen) { chosen.learning_rate = learning_rate; }, options);
  return Rule(options);
}

}  // namespace tutti::optim
