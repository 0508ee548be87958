#include "tutti/optim/loss_scale.h"

#include <cmath>
#include <limits>
#include <string_view>

#include "tutti/base/error.h"

namespace tutti::optim {
namespace {

constexpr double kLeast = 1.0 / 65'536;

void require(bool good, std::string_view field, double got, std::string_view expected) {
  if (!good)
    throw UsageError(fmt::format("loss scaling: {} is {}, must be {}", field, got, expected));
}

}  // namespace

LossScale::LossScale(const LossScaling& options)
    : options_(options), value_(static_cast<float>(options.initial)) {
  require(options.initial >= kLeast && options.initial <= std::numeric_limits<float>::max(),
          "initial", options.initial, "from 2^-16 to the largest float32");
  require(options.growth > 1 && std::isfinite(options.growth), "growth", options.growth,
          "a finite number above 1");
  require(options.backoff > 0 && options.backoff < 1, "backoff", options.backoff,
          "above 0 and below 1");
  require(options.growth_interval >= 1 &&
              options.growth_interval <= std::numeric_limits<int32_t>::max(),
          "growth_interval", static_cast<double>(options.growth_interval), "from 1 to 2^31 - 1");
}

void LossScale::restore(double value, int64_t good_steps, int64_t skipped) {
  value_ = static_cast<float>(value);
  good_steps_ = good_steps;
  skipped_ = skipped;
}

void LossScale::update(bool overflowed) {
  if (overflowed) {
    ++skipped_;
    good_steps_ = 0;
    value_ = static_cast<float>(value_ * options_.backoff);
    return require_useful(value_, options_);
  }
  if (++good_steps_ < options_.growth_interval) return;
  good_steps_ = 0;
  const double grown = value_ * options_.growth;
  if (grown <= std::numeric_limits<float>::max()) value_ = static_cast<float>(grown);
}

void LossScale::require_useful(double value, const LossScaling& options) {
  if (value < kLeast)
    throw Error(fmt::format(
        "loss scaling: gradients are not finite even where losses are multiplied by {}; try a "
        "smaller learning rate, look for NaN in the data",
        value / options.backoff));
}

}  // namespace tutti::optim
