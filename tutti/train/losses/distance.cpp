// Losses that measure how far outputs are from targets: regression, margins, distributions.
#include <torch/types.h>

#include <cmath>

#include "tutti/base/typed.h"
#include "tutti/train/losses/detail/loss_parts.h"

namespace tutti {

namespace {

using detail::kLossEpsilon;

class SquaredError : public LossKernel {
 public:
  at::Tensor per_sample(const at::Tensor& output, const at::Tensor& target) const override {
    check(output, target);
    const auto difference = output - target.to(output.scalar_type()).reshape(output.sizes());
    const auto squares = difference * difference;
    return output.dim() == 1 ? squares : squares.flatten(1).mean(1);
  }

  std::optional<hlo::Value> lower(const hlo::Value& output,
                                  const hlo::Value& target) const override {
    const hlo::Value difference =
        output - hlo::reshape(hlo::convert(target, DType::float32), output.shape());
    return detail::mean_of_samples(difference * difference);
  }

  at::Tensor scaled_sum(const at::Tensor& output, const at::Tensor& target, double scale,
                        double& total, const at::Tensor& weights) const override {
    if (!detail::plain_floats(output) || !detail::plain_floats(target)) {
      return LossKernel::scaled_sum(output, target, scale, total, weights);
    }
    check(output, target);
    at::Tensor gradient = at::empty(output.sizes(), output.options());
    const double sum = rows(output, target, scale, gradient.data_ptr<float>(),
                            detail::sample_weights(weights, output.size(0)));
    total += sum;
    return detail::with_gradient(output, gradient, sum * scale);
  }

  void add_to(const at::Tensor& output, const at::Tensor& target, double& total,
              const at::Tensor& weights) const override {
    if (!detail::plain_floats(output) || !detail::plain_floats(target)) {
      return LossKernel::add_to(output, target, total, weights);
    }
    check(output, target);
    total += rows(output, target, 1.0, nullptr, detail::sample_weights(weights, output.size(0)));
  }

 private:
  static double rows(const at::Tensor& output, const at::Tensor& target, double scale,
                     float* gradient, const std::vector<double>& weights) {
    return weights.empty() ? rows<false>(output, target, scale, gradient, nullptr)
                           : rows<true>(output, target, scale, gradient, weights.data());
  }

  // Two loops, since looking for weights in each row would cost 5 % where rows have one feature.
  template <bool weighted>
  static double rows(const at::Tensor& output, const at::Tensor& target, double scale,
                     float* gradient, const double* weights) {
    const int64_t batch = output.size(0);
    if (batch == 0) return 0;
    const int64_t features = output.numel() / batch;
    const float* out = output.data_ptr<float>();
    const float* wanted = target.data_ptr<float>();
    const double slope = 2.0 * scale / static_cast<double>(features);
    auto factor = static_cast<float>(slope);
    double total = 0;
    for (int64_t row = 0; row < batch; ++row) {
      if constexpr (weighted) factor = static_cast<float>(slope * weights[row]);
      double sum = 0;
      for (int64_t i = row * features; i < (row + 1) * features; ++i) {
        const float difference = out[i] - wanted[i];
        sum += static_cast<double>(difference) * difference;
        if (gradient != nullptr) gradient[i] = factor * difference;
      }
      sum /= static_cast<double>(features);
      if constexpr (weighted) sum *= weights[row];
      total += sum;
    }
    return total;
  }

  static void check(const at::Tensor& output, const at::Tensor& target) {
    detail::require_pair("mean_squared_error", output, target, false);
  }
};

/// max(1 - t * y, 0), where a target of 0 stands for -1.
at::Tensor margins(const at::Tensor& y, const at::Tensor& t) {
  return (1 - at::where(t == 0, -1, t) * y).relu();
}
hlo::Value lowered_margins(hlo::Value y, hlo::Value t) {
  const hlo::Value sign = hlo::select(hlo::compare(t, hlo::Comparison::eq, 0),
                                      hlo::constant(t.program(), t.type(), -1), t);
  return hlo::maximum(1 - sign * y, 0);
}

at::Tensor of_length_one(const at::Tensor& vectors) {
  return vectors / vectors.norm(2, {-1}, /*keepdim=*/true).clamp_min(kLossEpsilon);
}
hlo::Value of_length_one(hlo::Value vectors) {
  const hlo::Value squares = detail::sum_over_last(vectors * vectors);
  // The root of 0 has no slope.
  const hlo::Value norms = hlo::sqrt(detail::at_least(squares, kLossEpsilon * kLossEpsilon));
  return vectors / detail::along_last(norms, vectors.shape());
}

at::Tensor log_of_one_more(const at::Tensor& values) {
  return values.clamp_min(kLossEpsilon).log1p();
}
hlo::Value log_of_one_more(hlo::Value values) {
  return hlo::log(detail::at_least(values, kLossEpsilon) + 1);
}

}  // namespace

namespace losses {

Loss mean_squared_error() { return {"mean_squared_error", std::make_shared<SquaredError>()}; }

Loss mean_absolute_error() {
  return detail::loss_of_elements(
      "mean_absolute_error",
      {.of_tensors = [](const at::Tensor& y, const at::Tensor& t) { return (y - t).abs(); },
       .lowered = [](hlo::Value y, hlo::Value t) { return hlo::abs(y - t); }});
}

Loss mean_absolute_percentage_error() {
  return detail::loss_of_elements(
      "mean_absolute_percentage_error",
      {.of_tensors =
           [](const at::Tensor& y, const at::Tensor& t) {
             return ((t - y) / t.abs().clamp_min(kLossEpsilon)).abs() * 100;
           },
       .lowered =
           [](hlo::Value y, hlo::Value t) {
             return hlo::abs((t - y) / detail::at_least(hlo::abs(t), kLossEpsilon)) * 100;
           }});
}

Loss mean_squared_logarithmic_error() {
  return detail::loss_of_elements("mean_squared_logarithmic_error",
                                  {.of_tensors =
                                       [](const at::Tensor& y, const at::Tensor& t) {
                                         return (log_of_one_more(y) - log_of_one_more(t)).square();
                                       },
                                   .lowered =
                                       [](hlo::Value y, hlo::Value t) {
                                         const hlo::Value apart =
                                             log_of_one_more(y) - log_of_one_more(t);
                                         return apart * apart;
                                       }});
}

Loss huber(const HuberOptions& options) {
  const double delta = options.delta;
  detail::require_option(delta > 0 && std::isfinite(delta), "huber", "delta", delta,
                         "a finite number > 0");
  detail::require_option(fits_float32(delta), "huber", "delta", delta, kFloat32Range);
  return detail::loss_of_elements(
      "huber", {.of_tensors =
                    [delta](const at::Tensor& y, const at::Tensor& t) {
                      return at::huber_loss(y, t, at::Reduction::None, delta);
                    },
                .lowered =
                    [delta](hlo::Value y, hlo::Value t) {
                      const hlo::Value d = hlo::abs(y - t);
                      return hlo::select(hlo::compare(d, hlo::Comparison::le, delta), d * d * 0.5,
                                         (d - delta / 2) * delta);
                    }});
}

Loss log_cosh() {  // cosh itself overflows at 89
  return detail::loss_of_elements(
      "log_cosh", {.of_tensors =
                       [](const at::Tensor& y, const at::Tensor& t) {
                         const at::Tensor distance = (y - t).abs();
                         return distance + at::softplus(distance * -2) - std::log(2.0);
                       },
                   .lowered =
                       [](hlo::Value y, hlo::Value t) {
                         const hlo::Value distance = hlo::abs(y - t);
                         return distance + detail::softplus(distance * -2) - std::log(2.0);
                       }});
}

Loss hinge() {
  return detail::loss_of_elements("hinge", {.of_tensors = margins, .lowered = lowered_margins});
}

Loss squared_hinge() {
  return detail::loss_of_elements(
      "squared_hinge", {.of_tensors = [](const at::Tensor& y,
                                         const at::Tensor& t) { return margins(y, t).square(); },
                        .lowered =
                            [](hlo::Value y, hlo::Value t) {
                              const hlo::Value margin = lowered_margins(y, t);
                              return margin * margin;
                            }});
}

Loss categorical_hinge() {
  return detail::loss_over_classes(
      "categorical_hinge",
      {.of_tensors =
           [](const at::Tensor& y, const at::Tensor& t) {
             const at::Tensor best_wrong = ((1 - t) * y).amax(-1);
             return (best_wrong - (t * y).sum(-1) + 1).relu();
           },
       .lowered =
           [](hlo::Value y, hlo::Value t) {
             const auto last = static_cast<int64_t>(y.shape().size()) - 1;
             const hlo::Value best_wrong = hlo::reduce_max((1 - t) * y, {last});
             return hlo::maximum(best_wrong - detail::sum_over_last(t * y) + 1, 0);
           }});
}

Loss kl_divergence() {
  return detail::loss_over_classes(
      "kl_divergence", {.of_tensors =
                            [](const at::Tensor& y, const at::Tensor& t) {
                              const at::Tensor wanted = t.clamp(kLossEpsilon, 1);
                              return (wanted * (wanted / y.clamp(kLossEpsilon, 1)).log()).sum(-1);
                            },
                        .lowered =
                            [](hlo::Value y, hlo::Value t) {
                              const hlo::Value wanted = detail::clamped(t, kLossEpsilon, 1);
                              return detail::sum_over_last(
                                  wanted * hlo::log(wanted / detail::clamped(y, kLossEpsilon, 1)));
                            }});
}

Loss poisson() {
  return detail::loss_of_elements(
      "poisson",
      {.of_tensors = [](const at::Tensor& y,
                        const at::Tensor& t) { return y - t * (y + kLossEpsilon).log(); },
       .lowered = [](hlo::Value y, hlo::Value t) { return y - t * hlo::log(y + kLossEpsilon); }});
}

Loss cosine_similarity() {
  return detail::loss_over_classes(
      "cosine_similarity",
      {.of_tensors =
           [](const at::Tensor& y, const at::Tensor& t) {
             return -(of_length_one(y) * of_length_one(t)).sum(-1);
           },
       .lowered =
           [](hlo::Value y, hlo::Value t) {
             return -detail::sum_over_last(of_length_one(y) * of_length_one(t));
           }});
}

}  // namespace losses
}  // namespace tutti
