#include "tutti/train/report/noise_scale.h"

#include <fmt/format.h>

#include <cmath>
#include <limits>

#include "tutti/base/detail/check.h"

namespace tutti {
namespace {

constexpr double kFades = 0.99;  // in eight updates: half of the weight is on the last 552
constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();

// Two digits are more than the estimate has.
std::string rounded(double samples) {
  const double unit = std::pow(10.0, std::max(0.0, std::floor(std::log10(samples)) - 1));
  return fmt::format("{:.0f}", std::max(1.0, std::round(samples / unit) * unit));
}

}  // namespace

void NoiseScale::add(const GradientSquares& squares, std::span<const int64_t> samples) {
  if (squares.parts.empty()) return;
  TUTTI_CHECK(squares.parts.size() == samples.size(), "{} parts, samples of {}",
              squares.parts.size(), samples.size());
  double all = 0;
  double parts = 0;
  double of_parts = 0;
  for (size_t i = 0; i < samples.size(); ++i) {
    if (samples[i] == 0) continue;
    const auto own = static_cast<double>(samples[i]);
    all += own;
    parts += 1;
    of_parts += squares.parts[i] / own;  // a part's gradient is b / B of its mean
  }
  if (parts < 2) return;
  const double small = all * of_parts;
  const double big = squares.sum;
  if (!std::isfinite(small) || !std::isfinite(big) || small == 0) return;
  const double part = all / parts;
  const double kept = std::pow(kFades, squares.updates / 8.0);
  const auto fade = [&](double& mean, double now) { mean = kept * mean + (1 - kept) * now; };
  fade(gradient_square_, (all * big - part * small) / (all - part));
  fade(noise_, (small - big) / (1 / part - 1 / all));
  fade(weight_, 1);
}

double NoiseScale::gradient_square() const {
  return weight_ > 0 ? gradient_square_ / weight_ : kUnknown;
}

double NoiseScale::noise() const { return weight_ > 0 ? noise_ / weight_ : kUnknown; }

double NoiseScale::value() const {
  return gradient_square_ > 0 && noise_ >= 0 ? noise_ / gradient_square_ : kUnknown;
}

std::string NoiseScale::to_string(int64_t batch) const {
  const double scale = value();
  if (weight_ == 0) return "gradient noise scale: unknown, no update had two parts with samples";
  if (std::isnan(scale))
    return fmt::format(
        "gradient noise scale: unknown, in updates of {} samples the noise hides the gradient: a "
        "larger batch would still pay",
        batch);
  return fmt::format(
      "gradient noise scale: {:.4g} samples; more than {} samples a step stop paying (a step has "
      "{}): there a training takes twice the least steps and twice the least samples",
      scale, rounded(scale), batch);
}

void NoiseScale::restore(std::span<const double, kNumbers> state) {
  gradient_square_ = state[0];
  noise_ = state[1];
  weight_ = state[2];
}

}  // namespace tutti
