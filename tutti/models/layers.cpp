#include "tutti/models/detail/layers.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "tutti/base/error.h"

namespace tutti::models::detail {

int64_t scaled(int64_t units, double width) {
  if (!(width > 0 && std::isfinite(width))) {
    throw UsageError(fmt::format("models: width is {}, must be finite and above 0", width));
  }
  return std::max<int64_t>(1, std::llround(static_cast<double>(units) * width));
}

nn::Value photo(const nn::Value& image, int64_t least_side) {
  const nn::Value x = nn::repeat_channels(3)(image);
  const int64_t side = std::min(x.shape()[1], x.shape()[2]);
  return side >= least_side ? x : nn::upsample2d((least_side + side - 1) / side)(x);
}

nn::Value conv_norm(const nn::Value& x, const nn::Layer& convolution, const std::string& conv,
                    const std::string& norm, nn::BatchNormOptions options) {
  return nn::batch_norm2d(options).named(norm)(convolution.named(conv)(x));
}

}  // namespace tutti::models::detail
