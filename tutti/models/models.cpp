#include "tutti/models/models.h"

#include <fmt/format.h>

#include <functional>
#include <map>

#include "tutti/base/error.h"
#include "tutti/base/suggest.h"
#include "tutti/models/detail/layers.h"

namespace tutti::models {

namespace {

nn::Value dense_relu(const nn::Value& x, int64_t units) { return nn::relu()(nn::linear(units)(x)); }

PhotoOptions photo_options(const ImageOptions& options) {
  return {.classes = options.classes, .input = options.input, .width = options.width};
}

using Maker = std::function<nn::Graph(const ImageOptions&)>;

template <nn::Graph (*network)(PhotoOptions)>
nn::Graph of_photos(const ImageOptions& options) {
  return network(photo_options(options));
}

nn::Graph regression_by_name(const ImageOptions& options) {
  if (options.input.size() != 1) {
    throw UsageError(
        fmt::format("linear_regression: samples have shape {}, expected one dimension of features",
                    nn::to_string(options.input)));
  }
  return linear_regression(options.input[0]);
}

nn::Graph inception_by_name(const ImageOptions& options) {
  return inception_v3({.classes = options.classes, .input = options.input, .width = options.width});
}

nn::Graph vit_by_name(const ImageOptions& options) {
  VitOptions small{.classes = options.classes, .input = options.input};
  small.hidden = small.heads * detail::scaled(small.hidden / small.heads, options.width);
  small.mlp = detail::scaled(small.mlp, options.width);
  return vit(small);
}

const std::map<std::string, Maker, std::less<>>& makers() {
  static const std::map<std::string, Maker, std::less<>> known{
      {"alexnet", of_photos<alexnet>},
      {"cnn", doodle_cnn},
      {"doodle_cnn", doodle_cnn},
      {"inception_v3", inception_by_name},
      {"lenet", lenet},
      {"linear_regression", regression_by_name},
      {"mlp", mlp},
      {"resnet18", of_photos<resnet18>},
      {"resnet50", of_photos<resnet50>},
      {"vgg11", of_photos<vgg11>},
      {"vgg11_bn", of_photos<vgg11_bn>},
      {"vit", vit_by_name},
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
  const auto x = dense_relu(nn::flatten()(input), detail::scaled(128, options.width));
  return nn::Graph(input, nn::linear(options.classes)(x));
}

nn::Graph wide(ImageOptions options) {
  const auto input = nn::input(options.input);
  const int64_t units = detail::scaled(2048, options.width);
  const auto x = dense_relu(dense_relu(nn::flatten()(input), units), units);
  return nn::Graph(input, nn::linear(options.classes)(x));
}

nn::Graph doodle_cnn(ImageOptions options) {
  const auto input = nn::input(options.input);
  auto x = input;
  for (int64_t channels : {16, 32, 64}) {
    const auto conv = nn::conv2d(detail::scaled(channels, options.width), 3, {.padding = 1});
    x = nn::max_pool2d(2)(nn::relu()(conv(x)));
  }
  x = dense_relu(nn::flatten()(x), detail::scaled(128, options.width));
  return nn::Graph(input, nn::linear(options.classes)(x));
}

nn::Graph lenet(ImageOptions options) {
  const auto units = [&](int64_t number) { return detail::scaled(number, options.width); };
  const auto input = nn::input(options.input);
  auto x = nn::conv2d(units(6), 5, {.padding = 2}).named("conv1")(input);
  x = nn::avg_pool2d(2)(nn::tanh()(x));
  x = nn::avg_pool2d(2)(nn::tanh()(nn::conv2d(units(16), 5).named("conv2")(x)));
  x = nn::tanh()(nn::linear(units(120)).named("fc1")(nn::flatten()(x)));
  x = nn::tanh()(nn::linear(units(84)).named("fc2")(x));
  return nn::Graph(input, nn::linear(options.classes).named("fc3")(x));
}

const std::vector<std::string>& model_names() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> all;
    for (const auto& [name, maker] : makers()) all.push_back(name);
    return all;
  }();
  return names;
}

std::string model_words() {
  return "mlp, wide, cnn (doodle_cnn), lenet, resnet18, resnet50, alexnet, vgg11, vgg11_bn, "
         "inception_v3 or vit; for tables linear_regression, mlp or wide";
}

std::vector<std::string> models_for(const ImageOptions& options) {
  std::vector<std::string> names;
  for (const auto& [name, maker] : makers()) {
    try {
      maker(options);
      names.push_back(name);
    } catch (const UsageError&) {  // the shape is not for it
    }
  }
  return names;
}

nn::Graph model_by_name(std::string_view name, const ImageOptions& options) {
  const auto known = makers().find(name);
  if (known == makers().end()) throw UsageError(unknown_message("model", name, model_names()));
  return known->second(options);
}

}  // namespace tutti::models
