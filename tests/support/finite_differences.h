/// Gradients of a sum of losses that replicas compute together, by central differences.
#pragma once

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <functional>
#include <vector>

#include "tutti/strategy/strategy.h"

namespace tutti::test {

/// The loss of one replica, of its own input.
using ReplicaLoss = std::function<at::Tensor(ReplicaContext&, const at::Tensor& x)>;
/// The input of replica `rank`, float64; the same in every call.
using ReplicaInput = std::function<at::Tensor(int rank)>;

/// L_0 + ... + L_(n-1), when `change` is added to element `place` of replica `who`'s input.
inline double total_loss(Strategy& strategy, const ReplicaInput& input, const ReplicaLoss& loss,
                         int who = -1, int64_t place = 0, double change = 0) {
  const auto losses = strategy.run([&](ReplicaContext& replica) {
    at::Tensor x = input(replica.rank()).clone();
    if (replica.rank() == who) x.view(-1)[place] += change;
    return loss(replica, x.requires_grad_()).template item<double>();
  });
  return strategy.reduce(ReduceOp::sum, losses);
}

/// What backward() leaves in this worker's inputs; zeros where nothing came.
inline std::vector<at::Tensor> backward_gradients(Strategy& strategy, const ReplicaInput& input,
                                                  const ReplicaLoss& loss) {
  return strategy
      .run([&](ReplicaContext& replica) {
        at::Tensor x = input(replica.rank()).clone().requires_grad_();
        loss(replica, x).backward();
        return x.grad().defined() ? x.grad() : at::zeros_like(x);
      })
      .values();
}

/// Compares the two, element by element, for the inputs of all replicas; collective over workers.
inline void expect_gradients(Strategy& strategy, const ReplicaInput& input,
                             const ReplicaLoss& loss) {
  constexpr double kStep = 1e-5;  // error about kStep^2, and 1e-16 / kStep of rounding
  const auto got = backward_gradients(strategy, input, loss);
  const World& world = strategy.world();
  for (int rank = 0; rank < world.size; ++rank)
    for (int64_t place = 0; place < input(rank).numel(); ++place) {
      const double up = total_loss(strategy, input, loss, rank, place, kStep);
      const double down = total_loss(strategy, input, loss, rank, place, -kStep);
      const int local = rank - world.first_rank;
      if (local < 0 || local >= world.local) continue;
      const double slope = (up - down) / (2 * kStep);
      EXPECT_NEAR(got[local].view(-1)[place].item<double>(), slope, 1e-8 * (1 + std::abs(slope)))
          << "replica " << rank << ", element " << place;
    }
}

}  // namespace tutti::test
