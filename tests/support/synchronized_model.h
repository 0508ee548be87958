/// A small model with a batch norm over all replicas, and data that leaves replicas without
/// samples.
#pragma once

#include <torch/torch.h>

#include <cmath>
#include <vector>

#include "tutti/nn/graph.h"
#include "tutti/train/model/model.h"

namespace tutti::test {

/// 10 images [1, 4, 4] of three classes, in batches of 4, 4 and 2.
inline data::Dataset synchronized_data() {
  std::vector<float> x;
  std::vector<int64_t> y;
  for (int64_t i = 0; i < 10; ++i) {
    y.push_back(i % 3);
    for (int64_t k = 0; k < 16; ++k) x.push_back(std::sin(static_cast<float>(i * 16 + k)) + 1);
  }
  return data::from_arrays({data::array_of(x, {10, 1, 4, 4}), data::array_of(y, {10})})
      .shuffle()
      .batch(4);
}

inline Model synchronized_model(const Strategy& strategy, bool synchronized = true) {
  Model model(strategy, [synchronized] {
    const auto input = nn::input({1, 4, 4});
    auto x = nn::relu()(nn::batch_norm2d()(nn::conv2d(4, 3, {.padding = 1})(input)));
    const nn::Graph graph(input, nn::linear(3)(nn::flatten()(nn::max_pool2d(2)(x))));
    return synchronized ? nn::with_synchronized_batch_norm(graph) : graph;
  });
  model.compile({.optimizer = optim::sgd({.learning_rate = 0.1}),
                 .loss = losses::sparse_categorical_crossentropy(),
                 .metrics = {metrics::accuracy()}});
  return model;
}

}  // namespace tutti::test
