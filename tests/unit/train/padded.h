/// Logits and labels of which some are padding, PyTorch's loss of the others, and a model for them.
#pragma once

#include <torch/torch.h>

#include <utility>
#include <vector>

#include "tutti/sync/tensors.h"

#include "tests/unit/train/small_model.h"

namespace tutti {

/// Multiplies logits by what it learns, one factor a class: at first what goes in comes out.
struct Factors : torch::nn::Module {
  Factors() { factors = register_parameter("factors", torch::ones({3})); }
  at::Tensor forward(const at::Tensor& x) { return x * factors; }
  at::Tensor factors;
};

/// Logits [6, 4, 3] and labels, of which `padding` are as many positions as the sample's number.
struct Padded {
  at::Tensor logits, labels;

  explicit Padded(int64_t padding) {
    torch::manual_seed(11);
    logits = torch::randn({6, 4, 3}) * 2;
    labels = torch::randint(2, {6, 4}, torch::kInt64);
    for (int64_t row = 0; row < 6; ++row) labels[row].slice(0, 4 - row % 4) = padding;
  }
  data::Dataset batch(int64_t size) const {
    return data::from_arrays({array_of(logits), array_of(labels)}).batch(size);
  }
  /// Of all rows in one row.
  at::Tensor counts() const { return labels.flatten().lt(2).logical_and(labels.flatten().ge(0)); }
  /// PyTorch's mean over what counts.
  at::Tensor loss(const at::Tensor& factors, int64_t ignored) const {
    return torch::cross_entropy_loss((logits * factors).view({24, 3}), labels.flatten(), {},
                                     at::Reduction::Mean, ignored);
  }
};

inline Model factors_model(const char* kind, int replicas,
                           const losses::SparseCrossentropyOptions& options,
                           std::vector<Metric> metrics = {}) {
  Model model(strategy_of(kind, replicas), [] { return Factors(); });
  model.compile({.optimizer = optim::sgd({.learning_rate = 0.5}),
                 .loss = losses::sparse_categorical_crossentropy(options),
                 .metrics = std::move(metrics)});
  return model;
}

}  // namespace tutti
