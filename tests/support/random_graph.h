/// Networks drawn by number, of layers that the planned step knows.
#pragma once

#include <random>

#include "tutti/nn/graph.h"

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
      case 0: x = nn::conv2d(draw(1, 20), 3, {.padding = 1, .bias = draw(0, 1) == 0})(x); break;
      case 1:
        if (has_room) x = nn::conv2d(4 * draw(1, 5), {3, 2}, {.stride = 2})(nn::relu()(x));
        break;
      case 2:
        if (has_room) x = nn::max_pool2d(draw(2, 4), {.stride = draw(0, 3)})(nn::relu()(x));
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
    x = nn::linear(draw(1, 300), {.bias = draw(0, 1) == 0})(x);
    if (draw(0, 1) == 0) x = nn::relu()(x);
    if (draw(0, 2) == 0) x = nn::add(nn::linear(x.shape()[0])(x), x);
  }
  return {input, nn::linear(outputs > 0 ? outputs : draw(1, 10))(x)};
}

}  // namespace tutti::test
