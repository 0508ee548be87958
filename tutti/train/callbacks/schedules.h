/// Learning-rate schedules: the rate as a function of the step.
///
/// A step is counted by the updates already applied, from 0: the first update is made with the rate
/// of step 0. All lengths are in steps; steps_per_epoch * epochs is the length of a training.
/// Thread rule: a RateSchedule is immutable; any thread may call any copy.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace tutti {

/// A named function from the step to the learning rate. Copies share nothing that changes.
class RateSchedule {
 public:
  using Function = std::function<double(int64_t step)>;

  /// One's own: `rate` depends on nothing but the step, so that a training that goes on from a
  /// saved state has the rates of one that was never interrupted.
  RateSchedule(std::string name, Function rate);

  /// The rate of this step. Throws UsageError for a step below 0, and when the function gives no
  /// finite number.
  double operator()(int64_t step) const;

  const std::string& name() const noexcept { return name_; }

 private:
  std::string name_;
  Function rate_;
};

/// Schedules of Keras and PyTorch with their formulas. s is the step, [x] is x rounded down.
///
/// Every one is finite for every step; those with an end keep their last value after it. Fields
/// without a default here must be set. What is out of range throws UsageError that names schedule,
/// field, value and range when the schedule is made. Rates are finite; those to start from are > 0,
/// other ones >= 0.
namespace schedules {

/// `rate`, always.
RateSchedule constant(double rate);

struct PiecewiseConstantOptions {
  std::vector<int64_t> boundaries{};  ///< steps, >= 0, each above the one before
  std::vector<double> values{};       ///< rates, one more than boundaries
};
/// values[i] up to and including step boundaries[i], then the next one; the last has no end.
/// PiecewiseConstantDecay of Keras.
RateSchedule piecewise_constant(const PiecewiseConstantOptions& options);

struct ExponentialOptions {
  double initial = 0;       ///< rate of step 0
  int64_t decay_steps = 0;  ///< >= 1: steps in which the rate is multiplied once by decay_rate
  double decay_rate = 0;    ///< > 0, finite; above 1 it grows, up to the largest double
  bool staircase = false;   ///< true: only every decay_steps steps
};
/// initial * decay_rate^(s / decay_steps), with [s / decay_steps] for a staircase.
/// ExponentialDecay of Keras.
RateSchedule exponential(const ExponentialOptions& options);

struct InverseTimeOptions {
  double initial = 0;       ///< rate of step 0
  int64_t decay_steps = 0;  ///< >= 1
  double decay_rate = 0;    ///< >= 0, finite
  bool staircase = false;   ///< true: only every decay_steps steps
};
/// initial / (1 + decay_rate * s / decay_steps), with [s / decay_steps] for a staircase.
/// InverseTimeDecay of Keras.
RateSchedule inverse_time(const InverseTimeOptions& options);

struct PolynomialOptions {
  double initial = 0;       ///< rate of step 0
  int64_t decay_steps = 0;  ///< >= 1: steps until `end` is reached
  double end = 1e-4;        ///< rate at the end
  double power = 1;         ///< > 0, finite; 1 is a straight line
  bool cycle = false;       ///< true: begins anew after each end, from a lower rate every time
};
/// (initial - end) * (1 - s / n)^power + end, n = decay_steps and s at most n; for a cycle n is the
/// first multiple of decay_steps that is not below s. PolynomialDecay of Keras.
RateSchedule polynomial(const PolynomialOptions& options);

struct CosineOptions {
  double initial = 0;       ///< rate of step 0
  int64_t decay_steps = 0;  ///< >= 1
  double alpha = 0;         ///< 0 to 1: the last rate as a share of the first
};
/// initial * ((1 - alpha) * (1 + cos(pi * s / decay_steps)) / 2 + alpha), s at most decay_steps.
/// Loshchilov and Hutter 2017, arXiv:1608.03983; CosineDecay of Keras.
RateSchedule cosine(const CosineOptions& options);

struct CosineRestartsOptions {
  double initial = 0;             ///< rate of step 0
  int64_t first_decay_steps = 0;  ///< >= 1: length of the first period
  double t_mul = 2;               ///< >= 1, finite: a period is so many times the one before
  double m_mul = 1;               ///< > 0, finite: a period's first rate, likewise
  double alpha = 0;               ///< 0 to 1: the lowest rate as a share of `initial`
};
/// initial * ((1 - alpha) * m_mul^i * (1 + cos(pi * f)) / 2 + alpha) in period i, from 0, of which
/// the share f has gone by; at most the largest double. Loshchilov and Hutter 2017,
/// arXiv:1608.03983; CosineDecayRestarts of Keras.
RateSchedule cosine_restarts(const CosineRestartsOptions& options);

struct OneCycleOptions {
  double max = 0;                 ///< the largest rate, > 0
  int64_t total_steps = 0;        ///< >= 1
  double pct_start = 0.3;         ///< 0 to 1: the share of the steps in which the rate grows
  double div_factor = 25;         ///< >= 1, finite: the first rate is max / div_factor
  double final_div_factor = 1e4;  ///< >= 1, finite: the last one is the first / final_div_factor
};
/// From max / div_factor to max at step pct_start * total_steps - 1, then down until step
/// total_steps - 1; both ways along b + (a - b) * (1 + cos(pi * f)) / 2, from a to b.
/// Smith and Topin 2018, arXiv:1708.07120; OneCycleLR of PyTorch with two phases and cosines,
/// without its momentum.
RateSchedule one_cycle(const OneCycleOptions& options);

/// from + (then(0) - from) * s / steps in the first `steps` steps (>= 0), then then(s - steps).
/// Goyal et al. 2017, arXiv:1706.02677, section 2.2.
RateSchedule warm_up(int64_t steps, RateSchedule then, double from = 0);

/// base_rate * global_batch / base_batch: the rate for a global batch when base_rate is known to
/// suit base_batch samples. Goyal et al. 2017, section 2.1, who warm up beside it. Batches >= 1.
double linear_scaling(double base_rate, int64_t base_batch, int64_t global_batch);
/// The same by the square root of the batches' ratio: for Adam and its kin (Malladi et al. 2022,
/// arXiv:2205.10287).
double square_root_scaling(double base_rate, int64_t base_batch, int64_t global_batch);

/// base(s) times a factor that grows from 1 to `factor` (> 0, finite) in the first `warm_up_steps`
/// steps (>= 0), along a straight line; `base` goes on meanwhile. With a constant rate the gradual
/// warm-up of Goyal et al. 2017, section 2.2.
RateSchedule scaled(RateSchedule base, double factor, int64_t warm_up_steps = 0);

}  // namespace schedules
}  // namespace tutti
