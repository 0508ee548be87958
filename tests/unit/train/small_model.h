/// A small model and data for it, for tests of Model.
#pragma once

#include <torch/torch.h>

#include <cmath>
#include <string>
#include <vector>

#include "tutti/nn/graph.h"
#include "tutti/train/model/model.h"

namespace tutti {

inline Strategy strategy_of(const std::string& kind, int replicas) {
  return Strategy({.kind = kind, .replicas = replicas, .threads_per_replica = 1, .seed = 7});
}

/// `count` samples of three classes in four features, the same for every call; each of shape
/// `sample`.
inline data::Dataset three_classes(int64_t count, std::vector<int64_t> sample = {4}) {
  std::vector<float> x;
  std::vector<int64_t> y;
  for (int64_t i = 0; i < count; ++i) {
    y.push_back(i % 3);
    for (int64_t f = 0; f < 4; ++f) {
      x.push_back(std::sin(static_cast<float>(i * 4 + f)) * 0.5F + (f == i % 3 ? 1.0F : 0.0F));
    }
  }
  sample.insert(sample.begin(), count);
  return data::from_arrays({data::array_of(x, sample), data::array_of(y, {count})});
}

inline nn::Graph small_graph(double dropout = 0) {
  const auto input = nn::input({4});
  auto x = nn::relu()(nn::linear(8)(input));
  if (dropout > 0) x = nn::dropout(dropout)(x);
  return nn::Graph(input, nn::linear(3)(x));
}

inline CompileOptions adam_and_accuracy() {
  return {.optimizer = optim::adam({.learning_rate = 0.01}),
          .loss = losses::sparse_categorical_crossentropy(),
          .metrics = {metrics::accuracy(), metrics::top_k_accuracy(2)}};
}

inline Model small_model(const Strategy& strategy, double dropout = 0) {
  Model model(strategy, [dropout] { return small_graph(dropout); });
  model.compile(adam_and_accuracy());
  return model;
}

}  // namespace tutti
