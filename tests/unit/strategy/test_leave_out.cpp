// Steps that are not made, on any replica: one has it left out, and then nothing of it stays and
// the next one is as ever; or none has a gradient of what is trained.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tutti/base/error.h"
#include "tutti/strategy/modules/replicated.h"
#include "tutti/strategy/optimizer/loss_scaling.h"

#include "tests/support/message_of.h"

namespace tutti {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;

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
  // A step of a loss on the module that a loop had before it was ported: by whom it is refused, and
  // with which words.
  std::vector<std::string> refusals(const std::string& call) {
    if (call == "scaled") optimizer.scale_losses(optim::LossScale({.initial = 8}));
    torch::nn::Linear before(40, 30);
    std::vector<std::string> words(static_cast<size_t>(strategy.world().size));
    const auto step = [&](ReplicaContext& replica) {
      const auto loss = before->forward(torch::ones({2, 40})).pow(2).sum();
      if (call == "apply")
        return optimizer.apply(replica, gradients(loss, optimizer.parameters(replica)));
      if (call == "accumulate") {
        optimizer.accumulate(replica, loss);
        return optimizer.abstain(replica);
      }
      optimizer.minimize(replica, loss);
    };
    test::message_of<UsageError>([&] {
      strategy.run([&](ReplicaContext& replica) {
        try {
          step(replica);
        } catch (const Error& error) {  // that of the first, where its end comes before the own
          words[static_cast<size_t>(replica.rank())] = error.what();
          throw;
        }
      });
    });
    return words;
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

constexpr const char* kNothing =
    "no parameter of the optimizer has a gradient on any replica, so that the step would train "
    "nothing: not \"weight\", the first of 2";
constexpr const char* kOther =
    "the loss is of another module: its parameter of shape [30, 40] has one, in the place of "
    "\"weight\"";

TEST(ALossOfAnotherModule, IsRefusedOnAllReplicas) {
  for (const std::string how :
       {"fused", "clipped", "all_reduce", "torch", "topk", "state", "gradients", "parameters"})
    for (const int replicas : {1, 3}) {
      LeavingLoop loop("mirrored", how, replicas);
      EXPECT_THAT(loop.refusals("minimize"), Each(AllOf(HasSubstr(kNothing), HasSubstr(kOther))))
          << how << " " << replicas;
      EXPECT_EQ(loop.optimizer.version(), 0);
    }
}

TEST(ALossOfAnotherModule, IsRefusedHoweverTheStepIsMade) {
  for (const std::string call : {"apply", "accumulate", "scaled"}) {
    LeavingLoop loop("mirrored", "fused", 2);
    const auto words = loop.refusals(call);
    EXPECT_THAT(words, Each(HasSubstr(kNothing))) << call;
    if (call != "apply") {
      EXPECT_THAT(words, Each(HasSubstr(kOther))) << call;
    }
    EXPECT_EQ(loop.optimizer.version(), 0) << call;
  }
}

// On one thread the last replica's turn finds it; the step is forgotten.
TEST(ALossOfAnotherModule, IsRefusedInTurnAndTrainingCanGoOn) {
  for (const std::string how : {"fused", "clipped", "all_reduce", "torch", "topk"}) {
    LeavingLoop loop("one_device", how, 3), oracle("one_device", how, 3);
    EXPECT_THAT(loop.refusals("minimize").back(), AllOf(HasSubstr(kNothing), HasSubstr(kOther)))
        << how;
    EXPECT_EQ(loop.optimizer.version(), 0);
    loop.step(0);
    oracle.step(0);
    EXPECT_TRUE(at::equal(loop.weights(0), oracle.weights(0))) << how;
  }
}

TEST(ALossOfAnotherModule, OnSomeReplicasAlone) {
  for (const std::string kind : {"mirrored", "one_device"})
    for (const std::string how : {"fused", "all_reduce", "torch", "gradients"}) {
      LeavingLoop loop(kind, how, 2), oracle(kind, how, 2);
      torch::nn::Linear before(40, 30);
      const auto of = [](auto& module) { return module->forward(torch::ones({2, 40})).sum(); };
      loop.strategy.run([&](ReplicaContext& replica) {
        auto own = loop.net.local(replica);
        loop.optimizer.minimize(replica, replica.rank() == 0 ? of(own) : of(before));
      });
      oracle.strategy.run([&](ReplicaContext& replica) {
        auto own = oracle.net.local(replica);
        if (replica.rank() == 0) return oracle.optimizer.minimize(replica, of(own));
        oracle.optimizer.abstain(replica);
      });
      EXPECT_EQ(loop.optimizer.version(), 1);
      EXPECT_TRUE(at::equal(loop.weights(1), oracle.weights(1))) << kind << " " << how;
    }
}

TEST(AStepWithoutSamples, OnAllReplicasChangesNothing) {
  for (const std::string kind : {"mirrored", "one_device"})
    for (const std::string how : {"fused", "clipped", "all_reduce", "torch", "gradients"}) {
      LeavingLoop loop(kind, how, 2);
      const at::Tensor before = loop.weights(0).clone();
      loop.strategy.run([&](ReplicaContext& replica) { loop.optimizer.abstain(replica); });
      loop.strategy.run(
          [&](ReplicaContext& replica) { loop.optimizer.minimize(replica, torch::zeros({})); });
      EXPECT_EQ(loop.optimizer.version(), 2) << kind << " " << how;
      EXPECT_TRUE(at::equal(loop.weights(0), before)) << kind << " " << how;
    }
}

}  // namespace
}  // namespace tutti
