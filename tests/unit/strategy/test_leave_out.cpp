// A replica has the step left out on all: nothing of it stays, and the next one is as ever.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tutti/strategy/replicated.h"

namespace tutti {
namespace {

bool is_coded(const std::string& how) {
  return how == "topk" || how == "onebit" || how == "powersgd";
}

bool is_sharded(const std::string& how) {
  return how == "state" || how == "gradients" || how == "parameters";
}

struct LeavingLoop {
  LeavingLoop(const std::string& kind, const std::string& how, int replicas)
      : strategy({.kind = kind,
                  .replicas = replicas,
                  .threads_per_replica = 1,
                  .seed = 5,
                  .reduction = how == "all_reduce" ? how : "fused",
                  .compression = compression_from(is_coded(how) ? how : "none"),
                  .shard = is_sharded(how) ? how : ""}),
        net(strategy, [] { return torch::nn::Linear(40, 30); }),
        optimizer(make(how)) {}

  Optimizer make(const std::string& how) const {
    if (how == "torch")
      return {net, [](std::vector<at::Tensor> parameters) {
                return std::make_unique<torch::optim::Adam>(parameters,
                                                            torch::optim::AdamOptions(0.1));
              }};
    const auto adam = optim::adam({.learning_rate = 0.1});
    return how == "clipped" ? Optimizer(net, optim::Recipe(adam, {.global_norm = 0.5}))
                            : Optimizer(net, adam);
  }

  // Replica `bad` finds that there should be no step; -1: none does.
  void step(int number, int bad = -1, bool with_loss = true) {
    strategy.run([&](ReplicaContext& replica) {
      const auto x = torch::full({2, 40}, 0.1 * (number + 1) * (replica.rank() + 1));
      const auto loss = net.local(replica)->forward(x).pow(2).sum();
      if (replica.rank() != bad) return optimizer.minimize(replica, loss);
      with_loss ? optimizer.leave_out(replica, loss / 0) : optimizer.leave_out(replica);
    });
  }
  at::Tensor weights(int local) const {
    return torch::cat({optimizer.updater().parameters(local)[0].detach().flatten(),
                       optimizer.updater().parameters(local)[1].detach()});
  }

  Strategy strategy;
  Replicated<torch::nn::Linear> net;
  Optimizer optimizer;
};

TEST(LeaveOut, ChangesNothingOnAnyReplica) {
  for (const std::string how : {"fused", "clipped", "all_reduce", "torch", "topk", "onebit",
                                "powersgd", "state", "gradients", "parameters"})
    for (const std::string kind : {"one_device", "mirrored"})
      for (const int replicas : {1, 2, 3})
        for (const bool with_loss : {true, false}) {
          LeavingLoop loop(kind, how, replicas), oracle(kind, how, replicas);
          int64_t made = 0;
          // First, between others, twice running, by another replica each time.
          for (const int bad : {0, -1, replicas - 1, -1, 0, replicas - 1, -1}) {
            loop.step(static_cast<int>(made), bad, with_loss);
            if (bad >= 0) continue;
            oracle.step(static_cast<int>(made++));
          }
          EXPECT_EQ(loop.optimizer.version(), made);
          for (int local = 0; local < replicas; ++local)
            EXPECT_TRUE(at::equal(loop.weights(local), oracle.weights(0)))
                << how << " " << kind << " " << replicas << " " << local;
        }
}

TEST(LeaveOut, ForgetsWhatWasAccumulated) {
  LeavingLoop loop("mirrored", "fused", 2), oracle("mirrored", "fused", 2);
  loop.strategy.run([&](ReplicaContext& replica) {
    const auto loss = loop.net.local(replica)->forward(torch::ones({1, 40})).sum();
    loop.optimizer.accumulate(replica, loss);
    if (replica.rank() == 0)
      loop.optimizer.leave_out(replica);
    else
      loop.optimizer.abstain(replica);
  });
  EXPECT_EQ(loop.optimizer.version(), 0);
  loop.step(0);
  oracle.step(0);
  EXPECT_TRUE(at::equal(loop.weights(1), oracle.weights(1)));
}

}  // namespace
}  // namespace tutti
