// What replicas say with a step all of them know once it is made, however it is made.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <array>
#include <limits>
#include <string>
#include <vector>

#include "tutti/strategy/modules/replicated.h"

namespace tutti {
namespace {

struct TalkingLoop {
  static constexpr int kReplicas = 3;

  TalkingLoop(const std::string& kind, const std::string& how)
      : strategy({.kind = kind,
                  .replicas = kReplicas,
                  .threads_per_replica = 1,
                  .seed = 5,
                  .reduction = how == "all_reduce" ? how : "fused",
                  .compression = compression_from(how == "topk" ? how : "none"),
                  .shard = how == "state" || how == "parameters" ? how : ""}),
        net(strategy, [] { return torch::nn::Linear(40, 30); }),
        optimizer(net, optim::Recipe(optim::adam({.learning_rate = 0.1}),
                                     {.global_norm = how == "clipped" ? 0.5 : 0})) {}

  at::Tensor loss_of(const ReplicaContext& replica, int number) {
    const auto x = torch::full({2, 40}, 0.1 * (number + 1) * (replica.rank() + 1));
    return net.local(replica)->forward(x).pow(2).sum();
  }

  // What all know of the last step.
  std::vector<Verdict> verdicts() {
    std::vector<Verdict> all(kReplicas);
    strategy.run([&](ReplicaContext& replica) {
      all[static_cast<size_t>(replica.rank())] = optimizer.verdict(replica);
    });
    return all;
  }

  at::Tensor weights(int local) const {
    return optimizer.updater().parameters(local)[0].detach().clone();
  }

  Strategy strategy;
  Replicated<torch::nn::Linear> net;
  Optimizer optimizer;
};

template <class Test>
void with_each(Test test) {
  for (const std::string kind : {"one_device", "mirrored"})
    for (const std::string how :
         {"fused", "clipped", "all_reduce", "topk", "state", "parameters"}) {
      SCOPED_TRACE(kind + " " + how);
      TalkingLoop loop(kind, how);
      test(loop);
    }
}

TEST(Verdict, HasTheLargestSignalAndIsOfOneStep) {
  with_each([](TalkingLoop& loop) {
    loop.strategy.run([&](ReplicaContext& replica) {
      const int signal = std::array{2, 15, 0}.at(replica.rank());
      loop.optimizer.tell(replica, [signal] { return signal; }, false);
      loop.optimizer.minimize(replica, loop.loss_of(replica, 0));
    });
    for (const Verdict& verdict : loop.verdicts()) {
      EXPECT_EQ(verdict.signal, 15);
      EXPECT_FALSE(verdict.meets || verdict.left_out || verdict.overflowed);
    }
    loop.strategy.run([&](ReplicaContext& replica) {
      loop.optimizer.minimize(replica, loop.loss_of(replica, 1));
    });
    for (const Verdict& verdict : loop.verdicts()) {
      EXPECT_EQ(verdict.signal, 0);
      EXPECT_FALSE(verdict.meets);
    }
  });
}

TEST(Verdict, HasThatOneReplicaHasMoreToSayAndThatItLeavesTheStepOut) {
  with_each([](TalkingLoop& loop) {
    loop.strategy.run([&](ReplicaContext& replica) {
      loop.optimizer.tell(replica, {}, replica.rank() == 2);
      if (replica.rank() == 1) return loop.optimizer.leave_out(replica);
      loop.optimizer.minimize(replica, loop.loss_of(replica, 0));
    });
    for (const Verdict& verdict : loop.verdicts()) {
      EXPECT_TRUE(verdict.meets);
      EXPECT_TRUE(verdict.left_out);
    }
    EXPECT_EQ(loop.optimizer.version(), 0);
  });
}

// Of the step in which one overflows stays its version alone; the next is as after one in which
// nobody had samples.
TEST(Verdict, HasThatLossesOverflowedOnOneReplica) {
  with_each([](TalkingLoop& loop) {
    loop.optimizer.scale_losses(optim::LossScale({.initial = 8}));
    for (int number = 0; number < 2; ++number) {
      const at::Tensor before = loop.weights(0);
      loop.strategy.run([&](ReplicaContext& replica) {
        const bool bad = number == 1 && replica.rank() == 1;
        loop.optimizer.minimize(replica, loop.loss_of(replica, number) *
                                             (bad ? std::numeric_limits<float>::infinity() : 1));
      });
      for (const Verdict& verdict : loop.verdicts()) {
        EXPECT_EQ(verdict.overflowed, number == 1);
        EXPECT_FALSE(verdict.left_out);
      }
      for (int local = 0; local < TalkingLoop::kReplicas; ++local)
        EXPECT_EQ(at::equal(loop.weights(local), before), number == 1) << local;
      EXPECT_EQ(loop.optimizer.version(), number + 1);
      EXPECT_EQ(loop.optimizer.loss_scale()->value(), number == 1 ? 4 : 8);
    }
  });
}

TEST(Verdict, AStepThatOverflowedIsOneInWhichNobodyHadSamples) {
  for (const std::string kind : {"one_device", "mirrored"})
    for (const std::string how : {"fused", "clipped", "all_reduce", "state", "parameters"}) {
      TalkingLoop loop(kind, how), oracle(kind, how);
      for (TalkingLoop* const each : {&loop, &oracle}) {
        each->optimizer.scale_losses(optim::LossScale({.initial = 8}));
        for (int number = 0; number < 3; ++number)
          each->strategy.run([&](ReplicaContext& replica) {
            if (number == 1 && each == &oracle) return each->optimizer.abstain(replica);
            const bool bad = number == 1 && replica.rank() == 0;
            each->optimizer.minimize(replica,
                                     each->loss_of(replica, number) *
                                         (bad ? std::numeric_limits<float>::infinity() : 1));
          });
      }
      for (int local = 0; local < TalkingLoop::kReplicas; ++local)
        EXPECT_TRUE(at::equal(loop.weights(local), oracle.weights(0))) << kind << " " << how;
    }
}

}  // namespace
}  // namespace tutti
