#include "tutti/models/models.h"

#include <fmt/format.h>

#include <array>
#include <functional>
#include <map>

#include "tutti/base/error.h"
#include "tutti/base/suggest.h"

namespace tutti::models {

namespace {

nn::Value dense_relu(const nn::Value& x, int64_t units) { return nn::relu()(nn::linear(units)(x)); }

/// Two 3x3 convolutions and a way round them; the first one may halve height and width.
nn::Value basic_block(const nn::Value& x, const std::string& name, int64_t channels,
                      int64_t stride) {
  const auto conv = [&](const std::string& layer, int64_t kernel, int64_t step) {
    return nn::conv2d(channels, kernel, {.stride = step, .padding = kernel / 2, .bias = false})
        .named(name + layer);
  };
  const auto norm = [&](const std::string& layer) {
    return nn::batch_norm2d().named(name + layer);
  };
  nn::Value main = nn::relu()(norm(".bn1")(conv(".conv1", 3, stride)(x)));
  main = norm(".bn2")(conv(".conv2", 3, 1)(main));
  nn::Value shortcut = x;
  if (stride != 1 || x.shape()[0] != channels) {
    shortcut = norm(".downsample.1")(conv(".downsample.0", 1, stride)(x));
  }
  return nn::relu()(nn::add(main, shortcut));
}

using Maker = std::function<nn::Graph(const ImageOptions&)>;

const std::map<std::string, Maker, std::less<>>& makers() {
  static const std::map<std::string, Maker, std::less<>> known{
      {"cnn", doodle_cnn},
      {"doodle_cnn", doodle_cnn},
      {"linear_regression",
       [](const ImageOptions& options) {
         if (options.input.size() != 1) {
           throw UsageError(fmt::format(
               "linear_regression: samples have shape {}, expected one dimension of features",
               nn::to_string(options.input)));
         }
         return linear_regression(options.input[0]);
       }},
      {"mlp", mlp},
      {"resnet18",
       [](const ImageOptions& options) {
         return resnet18({.classes = options.classes, .input = options.input});
       }},
      {"wide", wide},
  };
  return known;
}

}  // namespace

nn::Graph linear_regression(int64_t features) {
  const auto input = nn::input({features});
  return nn::Graph(input, nn::linear(1)(input));
}

nn::Graph mlp(ImageOptions options) {
  const auto input = nn::input(options.input);
  const auto x = dense_relu(nn::flatten()(input), 128);
  return nn::Graph(input, nn::linear(options.classes)(x));
}

nn::Graph wide(ImageOptions options) {
  const auto input = nn::input(options.input);
  auto x = dense_relu(nn::flatten()(input), 2048);
  x = dense_relu(x, 2048);
  return nn::Graph(input, nn::linear(options.classes)(x));
}

nn::Graph doodle_cnn(ImageOptions options) {
  const auto input = nn::input(options.input);
  auto x = input;
  for (int64_t channels : {16, 32, 64}) {
    x = nn::max_pool2d(2)(nn::relu()(nn::conv2d(channels, 3, {.padding = 1})(x)));
  }
  x = dense_relu(nn::flatten()(x), 128);
  return nn::Graph(input, nn::linear(options.classes)(x));
}

nn::Graph resnet18(Resnet18Options options) {
  const auto input = nn::input(options.input);
  auto x = nn::repeat_channels(3)(input);
  x = nn::conv2d(64, 7, {.stride = 2, .padding = 3, .bias = false}).named("conv1")(x);
  x = nn::relu()(nn::batch_norm2d().named("bn1")(x));
  x = nn::max_pool2d(3, {.stride = 2, .padding = 1})(x);
  int64_t channels = 64;
  for (int layer = 1; layer <= 4; ++layer) {
    x = basic_block(x, fmt::format("layer{}.0", layer), channels, layer == 1 ? 1 : 2);
    x = basic_block(x, fmt::format("layer{}.1", layer), channels, 1);
    channels *= 2;
  }
  x = nn::global_avg_pool2d()(x);
  return nn::Graph(input, nn::linear(options.classes).named("fc")(x));
}

const std::vector<std::string>& model_names() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> all;
    for (const auto& [name, maker] : makers()) all.push_back(name);
    return all;
  }();
  return names;
}

nn::Graph model_by_name(std::string_view name, const ImageOptions& options) {
  const auto known = makers().find(name);
  if (known == makers().end()) throw UsageError(unknown_message("model", name, model_names()));
  return known->second(options);
}

}  // namespace tutti::models
