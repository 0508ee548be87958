#include <fmt/format.h>

#include "tutti/models/detail/layers.h"
#include "tutti/models/models.h"

namespace tutti::models {
namespace {

/// One layer of a block: what its convolution needs.
struct BlockLayer {
  int64_t channels;
  int64_t kernel;
  int64_t stride;
};

/// Convolutions, each with its batch norm, and a way round them. Parameters are named as
/// torchvision's: conv1, bn1, conv2, ...; downsample where the way round changes the shape.
nn::Value residual_block(const nn::Value& x, const std::string& name,
                         const std::vector<BlockLayer>& layers) {
  const auto conv = [](const BlockLayer& layer) {
    return nn::conv2d(layer.channels, layer.kernel,
                      {.stride = layer.stride, .padding = layer.kernel / 2, .bias = false});
  };
  nn::Value main = x;
  int64_t stride = 1;
  for (size_t i = 0; i < layers.size(); ++i) {
    if (i > 0) main = nn::relu()(main);
    main = detail::conv_norm(main, conv(layers[i]), fmt::format("{}.conv{}", name, i + 1),
                             fmt::format("{}.bn{}", name, i + 1));
    stride *= layers[i].stride;
  }
  nn::Value shortcut = x;
  if (x.shape() != main.shape()) {
    shortcut = detail::conv_norm(x, conv({layers.back().channels, 1, stride}),
                                 name + ".downsample.0", name + ".downsample.1");
  }
  return nn::relu()(nn::add(main, shortcut));
}

using LayersOf = std::vector<BlockLayer> (*)(int64_t channels, int64_t stride);

std::vector<BlockLayer> basic(int64_t channels, int64_t stride) {
  return {{channels, 3, stride}, {channels, 3, 1}};
}
std::vector<BlockLayer> bottleneck(int64_t channels, int64_t stride) {
  return {{channels, 1, 1}, {channels, 3, stride}, {4 * channels, 1, 1}};
}

nn::Graph resnet(const PhotoOptions& options, LayersOf layers_of, const std::vector<int>& blocks) {
  const auto input = nn::input(options.input);
  int64_t channels = detail::scaled(64, options.width);
  auto x = detail::conv_norm(detail::photo(input, 1),
                             nn::conv2d(channels, 7, {.stride = 2, .padding = 3, .bias = false}),
                             "conv1", "bn1");
  x = nn::max_pool2d(3, {.stride = 2, .padding = 1})(nn::relu()(x));
  for (size_t layer = 0; layer < blocks.size(); ++layer) {
    for (int i = 0; i < blocks[layer]; ++i) {
      const int64_t stride = layer > 0 && i == 0 ? 2 : 1;
      x = residual_block(x, fmt::format("layer{}.{}", layer + 1, i), layers_of(channels, stride));
    }
    channels *= 2;
  }
  x = nn::global_avg_pool2d()(x);
  return nn::Graph(input, nn::linear(options.classes).named("fc")(x));
}

}  // namespace

nn::Graph resnet18(PhotoOptions options) { return resnet(options, basic, {2, 2, 2, 2}); }
nn::Graph resnet50(PhotoOptions options) { return resnet(options, bottleneck, {3, 4, 6, 3}); }

}  // namespace tutti::models
