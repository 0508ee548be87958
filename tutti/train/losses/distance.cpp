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

at::Tensor of_length_one(const at::Tensor& vectors) {
  return vectors / vectors.norm(2, {-1}, /*keepdim=*/true).clamp_min(kLossEpsilon);
}

at::Tensor log_of_one_more(const at::Tensor& values) {
  return values.clamp_min(kLossEpsilon).log1p();
}

}  // namespace

namespace losses {

Loss mean_squared_error() { return {"mean_squared_error", std::make_shared<SquaredError>()}; }

Loss mean_absolute_error() {
  return detail::loss_of_elements("mean_absolute_error",
                                  [](const auto& y, const auto& t) { return (y - t).abs(); });
}

Loss mean_absolute_percentage_error() {
  return detail::loss_of_elements("mean_absolute_percentage_error",
                                  [](const auto& y, const auto& t) {
                                    return ((t - y) / t.abs().clamp_min(kLossEpsilon)).abs() * 100;
                                  });
}

Loss mean_squared_logarithmic_error() {
  return detail::loss_of_elements("mean_squared_logarithmic_error",
                                  [](const auto& y, const auto& t) {
                                    return (log_of_one_more(y) - log_of_one_more(t)).square();
                                  });
}

Loss huber(const HuberOptions& options) {
  const double delta = options.delta;
  detail::require_option(delta > 0 && std::isfinite(delta), "huber", "delta", delta,
                         "a finite number > 0");
  detail::require_option(fits_float32(delta), "huber", "delta", delta, kFloat32Range);
  return detail::loss_of_elements("huber", [delta](const auto& y, const auto& t) {
    return at::huber_loss(y, t, at::Reduction::None, delta);
  });
}

Loss log_cosh() {
  return detail::loss_of_elements("log_cosh", [](const auto& y, const auto& t) {
    const at::Tensor distance = (y - t).abs();  // cosh itself overflows at 89
    return distance + at::softplus(distance * -2) - std::log(2.0);
  });
}

Loss hinge() { return detail::loss_of_elements("hinge", margins); }

Loss squared_hinge() {
  return detail::loss_of_elements(
      "squared_hinge", [](const auto& y, const auto& t) { return margins(y, t).square(); });
}

Loss categorical_hinge() {
  return detail::loss_over_classes("categorical_hinge", [](const auto& y, const auto& t) {
    const at::Tensor best_wrong = ((1 - t) * y).amax(-1);
    return (best_wrong - (t * y).sum(-1) + 1).relu();
  });
}

Loss kl_divergence() {
  return detail::loss_over_classes("kl_divergence", [](const auto& y, const auto& t) {
    const at::Tensor wanted = t.clamp(kLossEpsilon, 1);
    return (wanted * (wanted / y.clamp(kLossEpsilon, 1)).log()).sum(-1);
  });
}

Loss poisson() {
  return detail::loss_of_elements(
      "poisson", [](const auto& y, const auto& t) { return y - t * (y + kLossEpsilon).log(); });
}

Loss cosine_similarity() {
  return detail::loss_over_classes("cosine_similarity", [](const auto& y, const auto& t) {
    return -(of_length_one(y) * of_length_one(t)).sum(-1);
  });
}

}  // namespace losses
}  // namespace tutti
