// Convolutions in a row, then dense layers with dropout between them.
#include <fmt/format.h>

#include "tutti/models/detail/layers.h"
#include "tutti/models/models.h"

namespace tutti::models {
namespace {

/// Numbers of torchvision's "features": every convolution, norm, ReLU and pool counts.
class Features {
 public:
  explicit Features(nn::Value x) : x_(std::move(x)) {}

  void add(const nn::Layer& layer) { x_ = layer.named(fmt::format("features.{}", number_++))(x_); }
  const nn::Value& value() const { return x_; }

 private:
  nn::Value x_;
  int number_ = 0;
};

nn::Value classifier_layer(const nn::Value& x, int64_t units, const std::string& name) {
  return nn::relu()(nn::linear(units).named(name)(x));
}

nn::Graph vgg(const PhotoOptions& options, bool norms) {
  constexpr int64_t kPool = 0;
  constexpr int64_t kConfigurationA[] = {64,  kPool, 128,   kPool, 256, 256,  kPool,
                                         512, 512,   kPool, 512,   512, kPool};
  const auto input = nn::input(options.input);
  Features features(detail::photo(input, 32));
  for (const int64_t channels : kConfigurationA) {
    if (channels == kPool) {
      features.add(nn::max_pool2d(2));
      continue;
    }
    features.add(nn::conv2d(detail::scaled(channels, options.width), 3, {.padding = 1}));
    if (norms) features.add(nn::batch_norm2d());
    features.add(nn::relu());
  }
  const int64_t units = detail::scaled(4096, options.width);
  auto x = nn::flatten()(nn::adaptive_avg_pool2d(7)(features.value()));
  x = nn::dropout(0.5)(classifier_layer(x, units, "classifier.0"));
  x = nn::dropout(0.5)(classifier_layer(x, units, "classifier.3"));
  return nn::Graph(input, nn::linear(options.classes).named("classifier.6")(x));
}

}  // namespace

nn::Graph alexnet(PhotoOptions options) {
  const auto channels = [&](int64_t number) { return detail::scaled(number, options.width); };
  const auto input = nn::input(options.input);
  Features features(detail::photo(input, 63));
  features.add(nn::conv2d(channels(64), 11, {.stride = 4, .padding = 2}));
  features.add(nn::relu());
  features.add(nn::max_pool2d(3, {.stride = 2}));
  features.add(nn::conv2d(channels(192), 5, {.padding = 2}));
  features.add(nn::relu());
  features.add(nn::max_pool2d(3, {.stride = 2}));
  for (const int64_t number : {384, 256, 256}) {
    features.add(nn::conv2d(channels(number), 3, {.padding = 1}));
    features.add(nn::relu());
  }
  features.add(nn::max_pool2d(3, {.stride = 2}));
  auto x = nn::dropout(0.5)(nn::flatten()(nn::adaptive_avg_pool2d(6)(features.value())));
  x = nn::dropout(0.5)(classifier_layer(x, channels(4096), "classifier.1"));
  x = classifier_layer(x, channels(4096), "classifier.4");
  return nn::Graph(input, nn::linear(options.classes).named("classifier.6")(x));
}

nn::Graph vgg11(PhotoOptions options) { return vgg(options, false); }
nn::Graph vgg11_bn(PhotoOptions options) { return vgg(options, true); }

}  // namespace tutti::models
