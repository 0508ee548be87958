#include "tutti/train/callbacks/schedules.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>
#include <string_view>
#include <utility>

#include "tutti/base/error.h"
#include "tutti/base/typed.h"

namespace tutti {
namespace {

constexpr double kLargestRate = std::numeric_limits<double>::max();

/// Checks the fields of one schedule's options.
class ScheduleFields {
 public:
  explicit ScheduleFields(std::string_view schedule) : schedule_(schedule) {}

  template <typename Number>
  void require(bool in_range, std::string_view field, Number value, std::string_view range) const {
    if (in_range) return;
    throw UsageError(fmt::format("schedule {}: {} = {} is out of range; expected {}", schedule_,
                                 field, value, range));
  }
  void factor(std::string_view field, double factor) const {
    require(std::isfinite(factor) && factor > 0, field, factor, "a finite number > 0");
  }
  void not_negative(std::string_view field, double factor) const {
    require(std::isfinite(factor) && factor >= 0, field, factor, "a finite number >= 0");
  }
  void first_rate(std::string_view field, double rate) const {
    factor(field, rate);
    require(fits_float32(rate), field, rate, kFloat32Range);
  }
  void rate(std::string_view field, double rate) const {
    not_negative(field, rate);
    require(fits_float32(rate), field, rate, kFloat32Range);
  }
  void steps(std::string_view field, int64_t steps, int64_t least = 1) const {
    require(steps >= least, field, steps, least == 0 ? ">= 0" : ">= 1");
  }
  void share(std::string_view field, double share) const {
    require(share >= 0 && share <= 1, field, share, "0 to 1");
  }
  void at_least_one(std::string_view field, double factor) const {
    require(std::isfinite(factor) && factor >= 1, field, factor, "a finite number >= 1");
  }

 private:
  std::string_view schedule_;
};

/// How often a period of `length` steps fits before `step`; whole times only, if asked.
double periods_before(int64_t step, int64_t length, bool whole) {
  return whole ? static_cast<double>(step / length)
               : static_cast<double>(step) / static_cast<double>(length);
}

/// From 1 to 0 along half a period of the cosine, as `fraction` goes from 0 to 1.
double half_cosine(double fraction) { return (1 + std::cos(std::numbers::pi * fraction)) / 2; }

/// A place among periods of which the first has length 1, and each `growth` times the last one's.
struct RestartPlace {
  double period = 0;    ///< from 0
  double fraction = 0;  ///< of it that has gone by, 0 to 1
};

RestartPlace restart_place(double at, double growth) {
  if (growth == 1) return {std::floor(at), at - std::floor(at)};
  growth = std::min(growth, 1e280);  // beyond it, a product with `at` overflows; no rate differs
  // Period i begins at (growth^i - 1) / (growth - 1). The forms with 1p and m1 keep their digits
  // where growth is barely above 1.
  const double log_growth = std::log1p(growth - 1);
  const auto begin = [&](double period) { return std::expm1(period * log_growth) / (growth - 1); };
  double period = std::floor(std::log1p(at * (growth - 1)) / log_growth);
  // The first step of a period must not fall into the one before by rounding: its rate would be
  // the lowest in place of the highest.
  const double slack = 1e-12 * at;
  if (begin(period + 1) <= at + slack) ++period;
  if (begin(period) > at + slack) --period;
  const double length = std::exp(period * log_growth);
  return {period, std::clamp((at - begin(period)) / length, 0.0, 1.0)};
}

}  // namespace

RateSchedule::RateSchedule(std::string name, Function rate)
    : name_(std::move(name)), rate_(std::move(rate)) {
  if (!rate_) throw UsageError(fmt::format("schedule {}: there is no function", name_));
}

double RateSchedule::operator()(int64_t step) const {
  if (step < 0)
    throw UsageError(fmt::format("schedule {}: step {}; steps are counted from 0", name_, step));
  const double rate = rate_(step);
  if (!std::isfinite(rate))
    throw UsageError(fmt::format("schedule {}: got {} for step {}, expected a finite number", name_,
                                 rate, step));
  return rate;
}

namespace schedules {

RateSchedule constant(double rate) {
  ScheduleFields("constant").rate("rate", rate);
  return {"constant", [rate](int64_t) { return rate; }};
}

RateSchedule piecewise_constant(const PiecewiseConstantOptions& options) {
  const ScheduleFields fields("piecewise_constant");
  int64_t last = -1;
  for (const int64_t boundary : options.boundaries) {
    fields.require(boundary > last, "boundaries", boundary,
                   last < 0 ? ">= 0" : fmt::format("> {}, the one before", last));
    last = boundary;
  }
  fields.require(options.values.size() == options.boundaries.size() + 1, "number of values",
                 options.values.size(), fmt::format("{}", options.boundaries.size() + 1));
  for (const double value : options.values) fields.rate("values", value);
  return {"piecewise_constant", [options](int64_t step) {
            const auto& ends = options.boundaries;
            const auto end = std::lower_bound(ends.begin(), ends.end(), step);
            return options.values[static_cast<size_t>(end - ends.begin())];
          }};
}

RateSchedule exponential(const ExponentialOptions& options) {
  const ScheduleFields fields("exponential");
  fields.first_rate("initial", options.initial);
  fields.steps("decay_steps", options.decay_steps);
  fields.factor("decay_rate", options.decay_rate);
  return {"exponential", [options](int64_t step) {
            const double periods = periods_before(step, options.decay_steps, options.staircase);
            const double rate = options.initial * std::pow(options.decay_rate, periods);
            return std::min(rate, kLargestRate);
          }};
}

RateSchedule inverse_time(const InverseTimeOptions& options) {
  const ScheduleFields fields("inverse_time");
  fields.first_rate("initial", options.initial);
  fields.steps("decay_steps", options.decay_steps);
  fields.not_negative("decay_rate", options.decay_rate);
  return {"inverse_time", [options](int64_t step) {
            const double periods = periods_before(step, options.decay_steps, options.staircase);
            return options.initial / (1 + options.decay_rate * periods);
          }};
}

RateSchedule polynomial(const PolynomialOptions& options) {
  const ScheduleFields fields("polynomial");
  fields.first_rate("initial", options.initial);
  fields.steps("decay_steps", options.decay_steps);
  fields.rate("end", options.end);
  fields.factor("power", options.power);
  return {"polynomial", [options](int64_t step) {
            const int64_t length = options.decay_steps;
            // Steps left until n; the whole first period at step 0 of a cycle, as n is not 0 there.
            int64_t left = std::max<int64_t>(length - step, 0);
            if (options.cycle && step > length) left = (length - step % length) % length;
            const double n = left == 0 ? 1 : static_cast<double>(step) + static_cast<double>(left);
            const double share = static_cast<double>(left) / n;
            return (options.initial - options.end) * std::pow(share, options.power) + options.end;
          }};
}

RateSchedule cosine(const CosineOptions& options) {
  const ScheduleFields fields("cosine");
  fields.first_rate("initial", options.initial);
  fields.steps("decay_steps", options.decay_steps);
  fields.share("alpha", options.alpha);
  return {"cosine", [options](int64_t step) {
            const int64_t at = std::min(step, options.decay_steps);
            const double share = half_cosine(periods_before(at, options.decay_steps, false));
            return options.initial * ((1 - options.alpha) * share + options.alpha);
          }};
}

RateSchedule cosine_restarts(const CosineRestartsOptions& options) {
  const ScheduleFields fields("cosine_restarts");
  fields.first_rate("initial", options.initial);
  fields.steps("first_decay_steps", options.first_decay_steps);
  fields.at_least_one("t_mul", options.t_mul);
  fields.factor("m_mul", options.m_mul);
  fields.share("alpha", options.alpha);
  return {"cosine_restarts", [options](int64_t step) {
            const double at = periods_before(step, options.first_decay_steps, false);
            const RestartPlace place = restart_place(at, options.t_mul);
            const double height = std::min(std::pow(options.m_mul, place.period), kLargestRate);
            const double share = height * half_cosine(place.fraction);
            const double rate = options.initial * ((1 - options.alpha) * share + options.alpha);
            return std::min(rate, kLargestRate);
          }};
}

RateSchedule one_cycle(const OneCycleOptions& options) {
  const ScheduleFields fields("one_cycle");
  fields.first_rate("max", options.max);
  fields.steps("total_steps", options.total_steps);
  fields.share("pct_start", options.pct_start);
  fields.at_least_one("div_factor", options.div_factor);
  fields.at_least_one("final_div_factor", options.final_div_factor);
  return {"one_cycle", [options](int64_t step) {
            const auto last = static_cast<double>(options.total_steps - 1);
            const double top = options.pct_start * static_cast<double>(options.total_steps) - 1;
            const double at = std::min(static_cast<double>(step), last);
            const double first = options.max / options.div_factor;
            if (at <= top) {
              // A rise of no steps is at its end.
              const double fraction = top > 0 ? at / top : 1;
              return options.max + (first - options.max) * half_cosine(fraction);
            }
            const double lowest = first / options.final_div_factor;
            return lowest + (options.max - lowest) * half_cosine((at - top) / (last - top));
          }};
}

RateSchedule warm_up(int64_t steps, RateSchedule then, double from) {
  const std::string name = fmt::format("warm_up of {}", then.name());
  const ScheduleFields fields(name);
  fields.steps("steps", steps, 0);
  fields.rate("from", from);
  return {name, [steps, then = std::move(then), from](int64_t step) {
            if (step >= steps) return then(step - steps);
            const double fraction = static_cast<double>(step) / static_cast<double>(steps);
            return from + (then(0) - from) * fraction;
          }};
}

double linear_scaling(double base_rate, int64_t base_batch, int64_t global_batch) {
  const ScheduleFields fields("linear_scaling");
  fields.rate("base_rate", base_rate);
  fields.steps("base_batch", base_batch);
  fields.steps("global_batch", global_batch);
  return base_rate * static_cast<double>(global_batch) / static_cast<double>(base_batch);
}

double square_root_scaling(double base_rate, int64_t base_batch, int64_t global_batch) {
  return base_rate * std::sqrt(linear_scaling(1, base_batch, global_batch));
}

RateSchedule scaled(RateSchedule base, double factor, int64_t warm_up_steps) {
  const std::string name =
      fmt::format("{} times {:.6g} after {} steps", base.name(), factor, warm_up_steps);
  const ScheduleFields fields(name);
  fields.factor("factor", factor);
  fields.steps("warm_up_steps", warm_up_steps, 0);
  return {name, [base = std::move(base), factor, warm_up_steps](int64_t step) {
            if (step >= warm_up_steps) return factor * base(step);
            const double share = static_cast<double>(step) / static_cast<double>(warm_up_steps);
            return (1 + (factor - 1) * share) * base(step);
          }};
}

}  // namespace schedules
}  // namespace tutti
