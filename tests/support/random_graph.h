/// Networks drawn by number, of layers that the planned step knows.
#pragma once

#include <random>

#include "tutti/nn/graph.h"
#include "tutti/nn/layers.h"

namespace tutti::test {

/// A network of layers that the plan knows, drawn by `seed`.
inline nn::Graph random_graph(unsigned seed, int64_t outputs = 0) {
  std::mt19937 random(seed);
  const auto draw = [&](int64_t from, int64_t to) {
    return from + static_cast<int64_t>(random() % static_cast<unsigned>(to - from + 1));
  };
  const auto input = nn::input({draw(1, 3), draw(8, 20), draw(8, 20)});
  nn::Value x = input;
  for (int64_t layers = draw(0, 5); layers > 0; --layers) {
    const bool has_room = x.shape()[1] >= 4 && x.shape()[2] >= 4;
    switch (draw(0, 6)) {
      case 0: {
        const bool bias = draw(0, 1) == 0;
        const int64_t units = draw(1, 20);
        x = nn::conv2d(units, 3, {.padding = 1, .bias = bias})(x);
        break;
      }
      case 1:
        if (has_room) x = nn::conv2d(4 * draw(1, 5), {3, 2}, {.stride = 2})(nn::relu()(x));
        break;
      case 2:
        if (has_room) {
          const int64_t stride = draw(0, 3), size = draw(2, 4);
          x = nn::max_pool2d(size, {.stride = stride})(nn::relu()(x));
        }
        break;
      case 3:
        if (has_room) x = nn::relu()(nn::max_pool2d(2, {.padding = draw(0, 1)})(x));
        break;
      case 4:
        if (has_room) x = nn::avg_pool2d(2)(x);
        break;
      case 5: x = nn::add(x, nn::tanh()(x)); break;
      default: x = nn::gelu()(nn::relu()(x));
    }
  }
  x = nn::flatten()(x);
  for (int64_t layers = draw(0, 2); layers > 0; --layers) {
    const bool bias = draw(0, 1) == 0;
    const int64_t units = draw(1, 300);
    x = nn::linear(units, {.bias = bias})(x);
    if (draw(0, 1) == 0) x = nn::relu()(x);
    if (draw(0, 2) == 0) x = nn::add(nn::linear(x.shape()[0])(x), x);
  }
  return {input, nn::linear(outputs > 0 ? outputs : draw(1, 10))(x)};
}

/// The same, of layers over sequences.
inline nn::Graph random_sequence_graph(unsigned seed, int64_t outputs = 0) {
  std::mt19937 random(seed);
  const auto draw = [&](int64_t from, int64_t to) {
    return from + static_cast<int64_t>(random() % static_cast<unsigned>(to - from + 1));
  };
  const auto input = nn::input({draw(2, 12), draw(1, 9)});
  nn::Value x = nn::linear(12)(input);
  for (int64_t layers = draw(1, 5); layers > 0; --layers) {
    const nn::RecurrentLayerOptions cell{
        .layers = draw(1, 2), .bidirectional = draw(0, 1) == 0, .sequences = true};
    const nn::Value branch = nn::linear(12, {.bias = draw(0, 1) == 0})(x);
    switch (draw(0, 8)) {
      case 0: x = nn::layer_norm()(nn::add(x, nn::self_attention(draw(1, 3))(x))); break;
      case 1: x = nn::attention(3, {.causal = draw(0, 1) == 0})(nn::linear(36)(x)); break;
      case 2: x = nn::multiply(x, nn::sigmoid()(branch)); break;
      case 3: x = nn::maximum(nn::subtract(x, branch), nn::minimum(x, nn::silu()(x))); break;
      case 4: x = nn::linear(12)(nn::lstm(draw(1, 20), cell)(x)); break;
      case 5: x = nn::linear(12)(nn::gru(draw(1, 20), cell)(x)); break;
      case 6: x = nn::add_position()(nn::prepend_token()(nn::dropout(0.2)(x))); break;
      case 7:
        if (x.shape()[0] >= 4) x = draw(0, 1) == 0 ? nn::max_pool1d(2)(x) : nn::avg_pool1d(2)(x);
        break;
      default: x = nn::softmax()(nn::gelu()(branch));
    }
  }
  switch (draw(0, 4)) {
    case 0: x = nn::global_avg_pool1d()(x); break;
    case 1: x = nn::global_max_pool1d()(x); break;
    case 2: x = nn::first_of_sequence()(x); break;
    case 3: x = nn::lstm(draw(1, 40))(x); break;
    default: x = nn::flatten()(x);
  }
  return {input, nn::linear(outputs > 0 ? outputs : draw(1, 10))(x)};
}

}  // namespace tutti::test
