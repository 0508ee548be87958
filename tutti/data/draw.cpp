#include "tutti/data/draw.h"

#include <cmath>

namespace tutti::data {

double Draw::normal() noexcept {
  // A point in a box around the region of the method; quadratic bounds spare most logarithms.
  for (;;) {
    const double u = 1 - uniform(0, 1);
    const double v = 1.7156 * (uniform(0, 1) - 0.5);
    const double x = u - 0.449871;
    const double y = std::abs(v) + 0.386595;
    const double q = x * x + y * (0.19600 * y - 0.25472 * x);
    if (q < 0.27597 || (q <= 0.27846 && v * v <= -4 * std::log(u) * u * u)) return v / u;
  }
}

double Draw::gamma(double shape) noexcept {
  if (shape < 1) return gamma(shape + 1) * std::pow(1 - uniform(0, 1), 1 / shape);
  const double d = shape - 1.0 / 3;
  const double c = 1 / std::sqrt(9 * d);
  for (;;) {
    const double x = normal();
    const double v = (1 + c * x) * (1 + c * x) * (1 + c * x);
    if (v > 0 && std::log(1 - uniform(0, 1)) < 0.5 * x * x + d * (1 - v + std::log(v)))
      return d * v;
  }
}

double Draw::beta(double alpha) noexcept {
  const double a = gamma(alpha);
  const double b = gamma(alpha);
  return a + b > 0 ? a / (a + b) : 0.5;
}

}  // namespace tutti::data
