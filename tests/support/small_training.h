/// A small network that learns from a small data set through the library.
#pragma once

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tutti/base/sha256.h"
#include "tutti/strategy/input/distributed_dataset.h"
#include "tutti/strategy/modules/replicated.h"
#include "tutti/strategy/optimizer/loss_scaling.h"
#include "tutti/sync/tensors.h"

#include "tests/support/plain_training.h"

namespace tutti::test {

inline StrategyOptions options_of(const std::string& kind, int replicas) {
  return {.kind = kind, .replicas = replicas, .threads_per_replica = 1, .seed = 11};
}
inline Strategy strategy_of(const std::string& kind, int replicas) {
  return Strategy(options_of(kind, replicas));
}

/// Images [1, 8, 8] of 4 classes, the same in every call; 50 of them make global batches of 16, 16,
/// 16 and a last one of 2.
inline data::Dataset small_data() {
  torch::manual_seed(3);
  const auto array_of = [](const at::Tensor& tensor) {
    return Array::view(tensor.data_ptr(), dtype_of(tensor.scalar_type()), tensor.sizes().vec(),
                       std::make_shared<at::Tensor>(tensor));
  };
  return data::from_arrays({array_of(torch::rand({50, 1, 8, 8})),
                            array_of(torch::randint(0, 4, {50}, at::kLong))})
      .shuffle()
      .batch(16);
}

/// One step of all replicas; the loss averaged over the global batch.
inline double train_step(Strategy& strategy, Replicated<torch::nn::Sequential>& net,
                         Optimizer& optimizer, const DistributedBatch& batch) {
  const auto losses = strategy.run([&](ReplicaContext& replica) {
    auto [x, y] = batch.local(replica);
    const auto each =
        torch::cross_entropy_loss(net.local(replica)->forward(x), y, {}, at::Reduction::None);
    const auto loss = average_loss(each, batch.global_size());
    optimizer.minimize(replica, loss);
    return loss.item<double>();
  });
  return strategy.reduce(ReduceOp::sum, losses);
}

inline std::vector<at::Tensor> copy_of(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> copies;
  for (const auto& tensor : tensors) copies.push_back(tensor.detach().clone());
  return copies;
}

struct Trained {
  std::vector<at::Tensor> parameters;
  std::vector<double> losses;  ///< of each step
};

using MakeOptimizer = std::function<Optimizer(const ReplicatedModules&)>;

/// Trains small_cnn on small_data; replicas of this process must agree in every bit.
inline Trained train(Strategy strategy, const MakeOptimizer& make_optimizer, int epochs = 2) {
  Replicated<torch::nn::Sequential> net(strategy, small_cnn);
  Optimizer optimizer = make_optimizer(net);
  auto batches = strategy.distribute(small_data());
  Trained trained;
  for (int epoch = 0; epoch < epochs; ++epoch)
    for (auto&& batch : batches.epoch(epoch))
      trained.losses.push_back(train_step(strategy, net, optimizer, batch));
  const Updater& updater = optimizer.updater();
  for (int local = 1; local < strategy.world().local; ++local)
    EXPECT_TRUE(bits_equal(updater.parameters(0), updater.parameters(local)));
  trained.parameters = copy_of(updater.parameters(0));
  return trained;
}

inline std::string sha_of(const std::vector<at::Tensor>& tensors) {
  Sha256 sha;
  for (const auto& tensor : tensors) sha.update(tensor.data_ptr(), tensor.nbytes());
  return sha.hex();
}

}  // namespace tutti::test
