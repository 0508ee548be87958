#include <fmt/format.h>

#include <vector>

#include "tutti/base/error.h"
#include "tutti/models/detail/layers.h"
#include "tutti/models/models.h"
#include "tutti/nn/layers.h"

namespace tutti::models {
namespace {

constexpr int64_t kMostLevels = 16;  // of an image's side, 2^16

nn::Value two_convolutions(nn::Value x, int64_t channels, const std::string& name) {
  for (const int number : {1, 2}) {
    const auto conv = nn::conv2d(channels, 3, {.padding = 1, .bias = false});
    x = nn::relu()(detail::conv_norm(x, conv, fmt::format("{}.conv{}", name, number),
                                     fmt::format("{}.bn{}", name, number)));
  }
  return x;
}

void check_unet(const UnetOptions& options) {
  for (const auto& [what, value] : {std::pair{"classes", options.classes},
                                    {"channels", options.channels},
                                    {"levels", options.levels}})
    if (value < 1) throw UsageError(fmt::format("unet: {} is {}, must be 1 or more", what, value));
  if (options.levels > kMostLevels)
    throw UsageError(
        fmt::format("unet: levels is {}, must be {} or less", options.levels, kMostLevels));
  const int64_t factor = int64_t{1} << options.levels;
  const auto& in = options.input;
  if (in.size() != 3 || in[1] % factor != 0 || in[2] % factor != 0)
    throw UsageError(
        fmt::format("unet: samples have shape {}, expected [channels, height, width] with "
                    "multiples of {}, which {} levels halve; try another size or fewer levels",
                    nn::to_string(in), factor, options.levels));
}

}  // namespace

nn::Graph unet(UnetOptions options) {
  check_unet(options);
  const auto input = nn::input(options.input);
  std::vector<nn::Value> passed;
  nn::Value x = input;
  int64_t channels = options.channels;
  for (int64_t level = 0; level < options.levels; ++level, channels *= 2) {
    passed.push_back(two_convolutions(x, channels, fmt::format("down{}", level + 1)));
    x = nn::max_pool2d(2)(passed.back());
  }
  x = two_convolutions(x, channels, "bottom");
  for (int64_t level = options.levels; level > 0; --level) {
    channels /= 2;
    const auto up = nn::conv_transpose2d(channels, 2, {.stride = 2});
    x = nn::concat(
        {passed[static_cast<size_t>(level - 1)], up.named(fmt::format("up{}.up", level))(x)});
    x = two_convolutions(x, channels, fmt::format("up{}", level));
  }
  const auto logits = nn::conv2d(options.classes, 1).named("head")(x);
  return nn::Graph(input, nn::permute({1, 2, 0})(logits));
}

}  // namespace tutti::models
