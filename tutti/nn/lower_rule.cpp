#include "tutti/nn/lower_rule.h"

#include <cmath>
#include <numeric>
#include <type_traits>

// p parameter, g gradient, m first and v second moment, s sum of squares, b momentum buffer, z
// linear term.

namespace tutti::nn {
namespace {

/// Writes the update of one tensor.
struct RuleLowering {
  const optim::Rule& rule;
  hlo::Value p, g;
  const std::vector<hlo::Value>& states;
  hlo::Value scalars;

  /// A scalar of the step, of the tensor's shape.
  hlo::Value scalar(int64_t which) const {
    return spread(hlo::reshape(hlo::slice(scalars, {which}, {which + 1}), {}));
  }
  hlo::Value spread(hlo::Value one) const { return hlo::broadcast(one, p.shape(), {}); }
  hlo::Value rate() const { return scalar(0); }
  hlo::Value correction() const { return scalar(1); }
  hlo::Value root() const { return scalar(2); }
  hlo::Value decay() const { return scalar(3); }
  hlo::Value is_first() const { return hlo::compare(scalar(4), hlo::Comparison::gt, 0); }

  template <class Options>
  hlo::Value decayed(const Options& o) const {
    return o.weight_decay != 0 ? g + p * o.weight_decay : g;
  }
  static hlo::Value mean(double beta, hlo::Value old, hlo::Value next) {
    return old * beta + next * (1 - beta);
  }

  /// 1, -1 or 0.
  static hlo::Value sign(hlo::Value a) {
    const hlo::Value above = hlo::convert(hlo::compare(a, hlo::Comparison::gt, 0), DType::float32);
    return above - hlo::convert(hlo::compare(a, hlo::Comparison::lt, 0), DType::float32);
  }

  hlo::Value norm(hlo::Value a) const {
    std::vector<int64_t> all(a.shape().size());
    std::iota(all.begin(), all.end(), 0);
    return hlo::sqrt(hlo::reduce_sum(a * a, all));
  }
  /// `wanted`, of norms, where both are above 0, else 1.
  hlo::Value where_both(hlo::Value first, hlo::Value second, hlo::Value wanted) const {
    const hlo::Value both = hlo::bit_and(hlo::compare(first, hlo::Comparison::gt, 0),
                                         hlo::compare(second, hlo::Comparison::gt, 0));
    return spread(hlo::select(both, wanted, hlo::constant(p.program(), {DType::float32, {}}, 1)));
  }

  LoweredUpdate operator()(const optim::SgdOptions& o) const {
    const hlo::Value d = decayed(o);
    if (o.momentum == 0) return {p - rate() * d, {}};
    const hlo::Value b = states[0] * o.momentum + d;
    return {p - rate() * (o.nesterov ? d + b * o.momentum : b), {b}};
  }

  /// Of Adam and AdamW.
  template <class Options>
  LoweredUpdate adam(const Options& o) const {
    constexpr bool kDecoupled = std::is_same_v<Options, optim::AdamWOptions>;
    const hlo::Value d = kDecoupled ? g : decayed(o);
    const hlo::Value m = mean(o.beta1, states[0], d), v = mean(o.beta2, states[1], d * d);
    const hlo::Value kept = kDecoupled ? p * (1 - rate() * o.weight_decay) : p;
    const hlo::Value under = o.amsgrad ? hlo::maximum(states[2], v) : v;
    std::vector<hlo::Value> now{m, v};
    if (o.amsgrad) now.push_back(under);
    return {kept - rate() * root() * correction() * m / (hlo::sqrt(under) + root() * o.epsilon),
            now};
  }
  LoweredUpdate operator()(const optim::AdamOptions& o) const { return adam(o); }
  LoweredUpdate operator()(const optim::AdamWOptions& o) const { return adam(o); }

  LoweredUpdate operator()(const optim::AdagradOptions& o) const {
    const hlo::Value d = decayed(o), s = states[0] + d * d;
    return {p - rate() * d / (hlo::sqrt(s) + o.epsilon), {s}};
  }

  LoweredUpdate operator()(const optim::FtrlOptions& o) const {
    // Before the first update z is what gives the parameter as it is, of 0 it is 0.
    const hlo::Value root_before = hlo::sqrt(states[1]);
    const hlo::Value far = p * ((root_before + o.beta) / rate() + o.l2) + sign(p) * o.l1;
    const hlo::Value before = hlo::select(is_first(), -far, states[0]);
    const hlo::Value s = states[1] + g * g, root_now = hlo::sqrt(s);
    const hlo::Value z = before + (g - (root_now - root_before) / rate() * p);
    const hlo::Value above = hlo::abs(z) - o.l1;
    const hlo::Value next = -(sign(z) * above) / ((root_now + o.beta) / rate() + o.l2);
    const hlo::Value nothing = hlo::constant(p.program(), p.type(), 0);
    return {hlo::select(hlo::compare(above, hlo::Comparison::le, 0), nothing, next), {z, s}};
  }

  LoweredUpdate operator()(const optim::RmspropOptions& o) const {
    const hlo::Value d = decayed(o), s = mean(o.rho, states[0], d * d);
    std::vector<hlo::Value> now{s};
    hlo::Value variance = s;
    if (o.centered) {
      now.push_back(mean(o.rho, states[1], d));
      variance = hlo::maximum(s - now[1] * now[1], 0);
    }
    hlo::Value step = d / (hlo::sqrt(variance) + o.epsilon);
    if (o.momentum != 0) {
      step = states.back() * o.momentum + step;
      now.push_back(step);
    }
    return {p - rate() * step, now};
  }

  LoweredUpdate operator()(const optim::AdadeltaOptions& o) const {
    const hlo::Value d = decayed(o), s = mean(o.rho, states[0], d * d);
    const hlo::Value step = hlo::sqrt(states[1] + o.epsilon) / hlo::sqrt(s + o.epsilon) * d;
    return {p - rate() * step, {s, mean(o.rho, states[1], step * step)}};
  }

  LoweredUpdate operator()(const optim::AdamaxOptions& o) const {
    const hlo::Value d = decayed(o), m = mean(o.beta1, states[0], d);
    const hlo::Value u = hlo::maximum(states[1] * o.beta2, hlo::abs(d) + o.epsilon);
    return {p - rate() * correction() * m / u, {m, u}};
  }

  LoweredUpdate operator()(const optim::NadamOptions& o) const {
    const hlo::Value d = decayed(o);
    const hlo::Value m = mean(o.beta1, states[0], d), v = mean(o.beta2, states[1], d * d);
    // The decay's power falls by the same factor in each step.
    const double factor = rule.next({}, o.learning_rate).decay_power;
    const hlo::Value now = (1 - decay() * 0.5) * o.beta1;
    const hlo::Value later = (1 - decay() * (0.5 * factor)) * o.beta1;
    // 1 - product later, of correction = 1 / (1 - product).
    const hlo::Value left = 1 - later + later / correction();
    const hlo::Value wanted = correction() * (1 - now) * d + later / left * m;
    return {p - rate() * root() * wanted / (hlo::sqrt(v) + root() * o.epsilon), {m, v}};
  }

  LoweredUpdate operator()(const optim::LionOptions& o) const {
    const hlo::Value c = mean(o.beta1, states[0], g);
    return {p * (1 - rate() * o.weight_decay) - rate() * sign(c), {mean(o.beta2, states[0], g)}};
  }

  LoweredUpdate operator()(const optim::LarsOptions& o) const {
    const hlo::Value of_p = norm(p), of_g = norm(g);
    const hlo::Value trust =
        where_both(of_p, of_g, of_p * o.trust / (of_g + of_p * o.weight_decay + o.epsilon));
    const hlo::Value b = states[0] * o.momentum + trust * decayed(o);
    return {p - rate() * b, {b}};
  }

  LoweredUpdate operator()(const optim::LambOptions& o) const {
    const hlo::Value m = mean(o.beta1, states[0], g), v = mean(o.beta2, states[1], g * g);
    const hlo::Value step =
        root() * correction() * m / (hlo::sqrt(v) + root() * o.epsilon) + p * o.weight_decay;
    const hlo::Value of_p = norm(p), of_step = norm(step);
    return {p - rate() * where_both(of_p, of_step, of_p / of_step) * step, {m, v}};
  }
};

}  // namespace

std::vector<float> lowered_scalars(const optim::StepScalars& scalars) {
  // Powers of 1 are those of a rule that reads none.
  const double left = 1 - scalars.beta1_power;
  return {static_cast<float>(scalars.learning_rate), static_cast<float>(left > 0 ? 1 / left : 1),
          static_cast<float>(std::sqrt(1 - scalars.beta2_power)),
          static_cast<float>(scalars.decay_power), scalars.count == 1 ? 1.F : 0.F};
}

LoweredUpdate lower(const optim::Rule& rule, hlo::Value parameter, hlo::Value gradient,
                    const std::vector<hlo::Value>& states, hlo::Value scalars) {
  return std::visit(RuleLowering{rule, parameter, gradient, states, scalars}, rule.options());
}

}  // namespace tutti::nn
