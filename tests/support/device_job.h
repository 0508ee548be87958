/// A small network trained by a loop of one's own, by replicas wherever they compute.
#pragma once

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <string>
#include <vector>

#include "tutti/strategy/input/distributed_dataset.h"
#include "tutti/strategy/modules/replicated.h"
#include "tutti/strategy/optimizer/loss_scaling.h"
#include "tutti/sync/tensors.h"

namespace tutti::test {

struct DeviceJob {
  std::string kind = "mirrored";
  int replicas = 2;
  std::string device = "cuda:0,1";
  optim::Recipe recipe = optim::adam({.learning_rate = 0.01});
  int steps = 6;
  bool unused = false;  ///< replica 1 leaves a parameter out in every second step
};

inline torch::nn::Sequential small_net() {
  return torch::nn::Sequential(torch::nn::Flatten(), torch::nn::Linear(64, 48), torch::nn::ReLU(),
                               torch::nn::Linear(48, 48), torch::nn::ReLU(),
                               torch::nn::Linear(48, 4));
}

inline at::Tensor forward(torch::nn::Sequential& net, const at::Tensor& x, bool short_cut) {
  at::Tensor y = x;
  int number = 0;
  for (auto& layer : *net) {
    const bool skipped = short_cut && (number == 3 || number == 4);
    if (!skipped) y = layer.forward(y);
    ++number;
  }
  return y;
}

/// One step of replica's part of 6 samples.
inline void device_step(ReplicaContext& replica, torch::nn::Sequential net, Optimizer& optimizer,
                        const at::Tensor& x, bool short_cut = false) {
  const int64_t rows = 6 / replica.num_replicas_in_sync(), first = rows * replica.rank();
  const auto part = x.narrow(0, first, rows).to(replica.device());
  const auto y = torch::arange(first, first + rows).remainder(4).to(replica.device());
  const auto each =
      torch::cross_entropy_loss(forward(net, part, short_cut), y, {}, at::Reduction::None);
  optimizer.minimize(replica, average_loss(each, 6));
}

/// Of `steps` steps: [steps, 6, 64].
inline at::Tensor device_data(int steps) {
  return torch::sin(torch::arange(6 * 64 * steps, at::kFloat)).view({steps, 6, 64});
}

inline std::vector<at::Tensor> flat_weights(const ReplicatedModules& modules) {
  std::vector<at::Tensor> all;
  for (int local = 0; local < modules.size(); ++local) {
    std::vector<at::Tensor> flat;
    for (const auto& [name, parameter] : unique_parameters(*modules.module(local)))
      flat.push_back(parameter.detach().cpu().reshape({-1}));
    all.push_back(torch::cat(flat));
  }
  return all;
}

inline StrategyOptions device_options(const DeviceJob& job) {
  return {.kind = job.kind,
          .replicas = job.replicas,
          .threads_per_replica = 1,
          .device = job.device,
          .seed = 11};
}

/// The weights after `steps` steps of a loop of one's own, of every local replica.
inline std::vector<at::Tensor> weights_of(const DeviceJob& job) {
  Strategy strategy(device_options(job));
  Replicated<torch::nn::Sequential> net(strategy, small_net);
  Optimizer optimizer(net, job.recipe);
  const auto x = device_data(job.steps);
  for (int step = 0; step < job.steps; ++step)
    strategy.run([&](ReplicaContext& replica) {
      device_step(replica, net.local(replica), optimizer, x[step],
                  job.unused && step % 2 == 1 && replica.rank() == 1);
    });
  return flat_weights(net);
}

inline bool all_equal(const std::vector<at::Tensor>& weights, const at::Tensor& expected) {
  return std::ranges::all_of(weights,
                             [&](const at::Tensor& one) { return torch::equal(one, expected); });
}

}  // namespace tutti::test
