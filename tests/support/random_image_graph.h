/// Networks of images drawn by number: norms, joints, layers that give images another size.
#pragma once

#include <random>

#include "tutti/nn/graph.h"
#include "tutti/nn/layers.h"

namespace tutti::test {

/// What follows `x`, drawn by `random`; of the same rank.
inline nn::Value random_image_layer(const nn::Value& x, std::mt19937& random) {
  const auto draw = [&](int64_t from, int64_t to) {
    return from + static_cast<int64_t>(random() % static_cast<unsigned>(to - from + 1));
  };
  const int64_t channels = x.shape()[0], high = x.shape()[1], wide = x.shape()[2];
  const bool has_room = high >= 4 && wide >= 4, is_small = high * wide * channels < 2000;
  switch (draw(0, 14)) {
    case 0: {
      const bool bias = draw(0, 1) == 0;
      const int64_t units = draw(1, 40);
      return nn::relu()(nn::batch_norm2d()(nn::conv2d(units, 3, {.padding = 1, .bias = bias})(x)));
    }
    case 1: return nn::batch_norm2d({.momentum = 0.3})(x);
    case 2: {  // a residual block
      const auto branch = nn::batch_norm2d()(nn::conv2d(channels, 3, {.padding = 1})(
          nn::relu()(nn::batch_norm2d()(nn::conv2d(channels, 1, {.bias = false})(x)))));
      return nn::relu()(nn::add(branch, draw(0, 1) == 0 ? x : nn::batch_norm2d()(x)));
    }
    case 3: return nn::group_norm(channels % 2 == 0 ? 2 : 1)(x);
    case 4: return nn::concat({x, nn::conv2d(draw(1, 5), 1)(x), nn::tanh()(x)});
    case 5: return nn::concat({nn::relu()(nn::batch_norm2d()(x)), x});
    case 6: {
      if (!is_small) return nn::sigmoid()(x);
      const int64_t more = draw(0, 1);
      const bool bias = draw(0, 1) == 0;
      const nn::ConvTranspose2dOptions options{.stride = 2, .output_padding = more, .bias = bias};
      const int64_t units = draw(1, 9);
      return nn::conv_transpose2d(units, {2, 3}, options)(x);
    }
    case 7: return is_small ? nn::upsample2d(draw(1, 3))(x) : nn::silu()(x);
    case 8: return nn::repeat_channels(draw(2, 20))(nn::conv2d(1, 1)(x));
    case 9: return nn::reshape({wide, channels, -1})(x);
    case 10: return draw(0, 1) == 0 ? nn::permute({2, 0, 1})(x) : nn::permute({0, 2, 1})(x);
    case 11: return wide > 3 ? nn::slice(1, wide - draw(0, 1))(x) : nn::gelu()(x);
    case 12: return nn::adaptive_avg_pool2d({draw(2, 4), draw(1, 4)})(x);
    case 13: return has_room ? nn::max_pool2d(3, {.stride = 2, .padding = 1})(x) : nn::relu()(x);
    default: {
      const auto once = nn::relu()(x);
      return nn::add(once, nn::add(nn::tanh()(once), nn::add(nn::elu()(x), once)));
    }
  }
}

inline nn::Graph random_image_graph(unsigned seed) {
  std::mt19937 random(seed);
  const auto input = nn::input({2, 9 + static_cast<int64_t>(random() % 5), 12});
  nn::Value x = input;
  for (auto layers = 2 + random() % 6; layers > 0; --layers) x = random_image_layer(x, random);
  x = random() % 2 == 0 ? nn::global_avg_pool2d()(x) : nn::flatten()(x);
  return {input, nn::linear(3)(x)};
}

}  // namespace tutti::test
