/// A model with two inputs and two outputs, and data for it.
#pragma once

#include <torch/torch.h>

#include <cmath>
#include <string>
#include <vector>

#include "tutti/nn/graph.h"
#include "tutti/train/model/model.h"

namespace tutti::test {

/// Inputs "place" [4] and "size" [2]; outputs "kind" [3], logits, and "height" [1].
inline nn::Graph two_outputs() {
  const auto place = nn::input({4});
  const auto size = nn::input({2});
  auto x = nn::concat({nn::relu()(nn::linear(8).named("place_in")(place)), size});
  x = nn::relu()(nn::linear(6).named("both")(x));
  return nn::Graph(
      {{"place", place}, {"size", size}},
      {{"kind", nn::linear(3).named("kind")(x)}, {"height", nn::linear(1).named("height")(x)}});
}

inline std::vector<OutputOptions> kind_and_height() {
  return {{.name = "kind",
           .loss = losses::sparse_categorical_crossentropy(),
           .metrics = {metrics::accuracy(), metrics::confusion_matrix()}},
          {.name = "height",
           .loss = losses::mean_squared_error(),
           .weight = 0.25,
           .metrics = {metrics::mean_absolute_error()}}};
}

/// `count` samples of place, size, kind, height and, where asked for, a weight.
inline data::Dataset places(int64_t count, bool weights = false) {
  std::vector<float> place, size, height, weight;
  std::vector<int64_t> kind;
  for (int64_t i = 0; i < count; ++i) {
    const auto number = static_cast<float>(i);
    for (int f = 0; f < 4; ++f) place.push_back(std::sin(number * 4 + static_cast<float>(f)));
    for (int f = 0; f < 2; ++f) size.push_back(std::cos(number * 2 + static_cast<float>(f)));
    kind.push_back(i % 3);
    height.push_back(static_cast<float>(i % 5) - size.back());
    weight.push_back(static_cast<float>(i % 4) * 0.5F);
  }
  std::vector<Array> columns{data::array_of(place, {count, 4}), data::array_of(size, {count, 2}),
                             data::array_of(kind, {count}), data::array_of(height, {count, 1})};
  if (weights) columns.push_back(data::array_of(weight, {count}));
  return data::from_arrays(std::move(columns));
}

inline Model two_output_model(const Strategy& strategy) {
  Model model(strategy, two_outputs);
  model.compile({.optimizer = optim::sgd({.learning_rate = 0.05}), .outputs = kind_and_height()});
  return model;
}

}  // namespace tutti::test
