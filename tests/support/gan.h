/// A generative adversarial network, as a textbook writes it: two models, two optimizers, noise and
/// LibTorch's own dropout.
#pragma once

#include <torch/torch.h>

#include <cmath>
#include <string>
#include <vector>

#include "tests/support/small_training.h"

namespace tutti::test {

/// 22 points of a circle, in global batches of 8, 8 and 6.
inline data::Dataset circle() {
  std::vector<float> points;
  for (int i = 0; i < 22; ++i)
    points.insert(points.end(), {std::cos(static_cast<float>(i)), std::sin(static_cast<float>(i))});
  return data::from_arrays({data::array_of(points, {22, 2})}).shuffle().batch(8);
}

/// Trains it for two epochs; of the parameters of both models.
inline std::string gan_sha(Strategy strategy) {
  namespace nn = torch::nn;
  Replicated<nn::Sequential> critic(strategy, [] {
    return nn::Sequential(nn::Linear(2, 16), nn::LeakyReLU(), nn::Dropout(0.3), nn::Linear(16, 1));
  });
  Replicated<nn::Sequential> maker(
      strategy, [] { return nn::Sequential(nn::Linear(3, 16), nn::ReLU(), nn::Linear(16, 2)); });
  Optimizer critics(critic, optim::adam({.learning_rate = 0.01}));
  Optimizer makers(maker, optim::adam({.learning_rate = 0.01}));
  const auto costs = [&](ReplicaContext& replica, const at::Tensor& x, double label) {
    const at::Tensor logits = critic.local(replica)->forward(x);
    return at::binary_cross_entropy_with_logits(logits, at::full_like(logits, label), {}, {},
                                                at::Reduction::None);
  };
  const auto made = [&](ReplicaContext& replica, int64_t count) {
    return maker.local(replica)->forward(torch::randn({count, 3}));
  };
  auto data = strategy.distribute(circle());
  for (int epoch = 0; epoch < 2; ++epoch)
    for (auto&& batch : data.epoch(epoch)) {
      strategy.run([&](ReplicaContext& replica) {
        const at::Tensor real = batch.columns(replica)[0];
        critics.zero_grad(replica);  // that of the maker's loss
        critics.minimize(
            replica,
            costs(replica, real, 1) + costs(replica, made(replica, real.size(0)).detach(), 0),
            batch.global_size());
      });
      strategy.run([&](ReplicaContext& replica) {
        makers.minimize(replica, costs(replica, made(replica, batch.local_size(replica)), 1),
                        batch.global_size());
      });
    }
  std::vector<at::Tensor> all = copy_of(critics.updater().parameters(0));
  for (const at::Tensor& parameter : makers.updater().parameters(0))
    all.push_back(parameter.detach().clone());
  return sha_of(all);
}

}  // namespace tutti::test
