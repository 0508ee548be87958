// Replicas that take turns on one thread make one step together in a run(), or are told why not.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tutti/base/error.h"

#include "tests/support/message_of.h"
#include "tests/support/small_training.h"

namespace tutti {
namespace {

using test::message_of;
using ::testing::AllOf;
using ::testing::HasSubstr;

struct Weight : torch::nn::Module {
  Weight() { w = register_parameter("w", torch::zeros({1})); }
  at::Tensor w;
};

// Updated by the fused step, by an update on every replica, and with scaled losses.
class InTurn : public ::testing::TestWithParam<std::string> {
 protected:
  static Strategy strategy_of(int replicas) {
    auto options = test::options_of("one_device", replicas);
    if (GetParam() == "all_reduce") options.reduction = "all_reduce";
    return Strategy(options);
  }

  struct Bench {
    explicit Bench(int replicas)
        : strategy(strategy_of(replicas)),
          net(strategy, [] { return std::make_shared<Weight>(); }),
          optimizer(net, optim::sgd({.learning_rate = 1.0})) {
      if (GetParam() == "scaled") optimizer.scale_losses(optim::LossScale({.initial = 4}));
    }
    /// Replica r takes part times[r] times, with a gradient of `factor`.
    void run(const std::vector<int>& times, double factor) {
      strategy.run([&](ReplicaContext& replica) {
        for (int i = 0; i < times[static_cast<size_t>(replica.rank())]; ++i)
          optimizer.minimize(replica, factor * net.local(replica)->w.sum());
      });
    }
    double weight() const { return optimizer.updater().parameters(0)[0].item<double>(); }

    Strategy strategy;
    Replicated<Weight> net;
    Optimizer optimizer;
  };
};

INSTANTIATE_TEST_SUITE_P(Updates, InTurn, ::testing::Values("fused", "all_reduce", "scaled"),
                         [](const auto& info) { return info.param; });

TEST_P(InTurn, ASecondStepInARunIsRefused) {
  for (const auto& times : std::vector<std::vector<int>>{{2, 2}, {2, 1}, {3, 3}}) {
    Bench bench(2);
    EXPECT_THAT(message_of<UsageError>([&] { bench.run(times, 1); }),
                AllOf(HasSubstr("replica 0 took part in two steps in one run()"),
                      HasSubstr("give each step a run() of its own")));
    EXPECT_EQ(bench.weight(), 0);
    EXPECT_EQ(bench.optimizer.version(), 0);
    bench.run({1, 1}, 10);
    EXPECT_EQ(bench.weight(), -20) << "nothing of the run that failed";
    EXPECT_EQ(bench.optimizer.version(), 1);
  }
  Bench last(2);
  EXPECT_THAT(message_of<UsageError>([&] { last.run({1, 2}, 1); }),
              HasSubstr("replica 1 took part in two steps"));
  last.run({1, 1}, 10);
  EXPECT_EQ(last.weight(), -22) << "the step that all had made, and the next";
}

TEST_P(InTurn, AReplicaThatLeavesTheStepOutIsNamed) {
  for (int absent = 0; absent < 3; ++absent) {
    Bench bench(3);
    std::vector<int> times{1, 1, 1};
    times[static_cast<size_t>(absent)] = 0;
    for (int round = 0; round < 2; ++round)
      EXPECT_THAT(message_of<UsageError>([&] { bench.run(times, 1); }),
                  HasSubstr(fmt::format("replica {} has not taken part", absent)));
    std::vector<int> others{0, 0, 0};
    others[static_cast<size_t>(absent)] = 1;
    EXPECT_THROW(bench.run(others, 1), UsageError);
    bench.run({0, 0, 0}, 1);  // a run() without a step
    EXPECT_EQ(bench.weight(), 0) << "parts of different runs make no step";
    bench.run({1, 1, 1}, 10);
    EXPECT_EQ(bench.weight(), -30);
  }
}

TEST_P(InTurn, AbstainAndApplyCountAsTakingPart) {
  Bench bench(2);
  EXPECT_THAT(message_of<UsageError>([&] {
                bench.strategy.run([&](ReplicaContext& replica) {
                  bench.optimizer.abstain(replica);
                  bench.optimizer.abstain(replica);
                });
              }),
              HasSubstr("replica 0 took part in two steps"));
  if (GetParam() == "scaled") return;  // apply() is not for scaled losses
  const std::vector<at::Tensor> ones{torch::ones({1})};
  EXPECT_THAT(message_of<UsageError>([&] {
                bench.strategy.run([&](ReplicaContext& replica) {
                  bench.optimizer.apply(replica, ones);
                  bench.optimizer.apply(replica, ones);
                });
              }),
              HasSubstr("replica 0 took part in two steps"));
  bench.strategy.run([&](ReplicaContext& replica) {
    if (replica.rank() == 0) return bench.optimizer.abstain(replica);
    bench.optimizer.apply(replica, ones);
  });
  EXPECT_EQ(bench.weight(), -1);
}

TEST_P(InTurn, OneReplicaMakesAsManyStepsAsItLikes) {
  Bench bench(1);
  bench.run({3}, 1);
  EXPECT_EQ(bench.weight(), -3);
  EXPECT_EQ(bench.optimizer.version(), 3);
}

}  // namespace
}  // namespace tutti
