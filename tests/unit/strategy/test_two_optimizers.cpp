// Two models that train each other: the order of their steps, and gradients of the other's loss.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tutti/base/error.h"

#include "tests/support/gan.h"
#include "tests/support/message_of.h"

namespace tutti {
namespace {

using test::message_of;
using test::strategy_of;
using ::testing::AllOf;
using ::testing::HasSubstr;

struct One : torch::nn::Module {
  explicit One(float start) { w = register_parameter("w", torch::full({1}, start)); }
  at::Tensor w;
};

// Two parameters, d = 2 and g = 1, each with an optimizer; updated by the fused step, or by an
// update on every replica.
struct Two {
  Two(const std::string& kind, int replicas, const std::string& reduction = "fused")
      : strategy([&] {
          auto options = test::options_of(kind, replicas);
          options.reduction = reduction;
          return options;
        }()),
        d(strategy, [] { return std::make_shared<One>(2.0F); }),
        g(strategy, [] { return std::make_shared<One>(1.0F); }),
        of_d(d, optim::sgd({.learning_rate = 0.5})),
        of_g(g, optim::sgd({.learning_rate = 0.5})) {}

  // Each replica's part of d * g, for d; then that for g, of the new d.
  void step_d(ReplicaContext& replica) {
    of_d.minimize(replica, (d.local(replica)->w * g.local(replica)->w.detach()).sum());
  }
  void step_g(ReplicaContext& replica) {
    of_g.minimize(replica, (d.local(replica)->w.detach() * g.local(replica)->w).sum());
  }
  std::vector<double> values() const {
    return {of_d.updater().parameters(0)[0].item<double>(),
            of_g.updater().parameters(0)[0].item<double>()};
  }

  Strategy strategy;
  Replicated<One> d, g;
  Optimizer of_d, of_g;
};

class TwoOptimizers : public ::testing::TestWithParam<std::string> {};

INSTANTIATE_TEST_SUITE_P(Updates, TwoOptimizers, ::testing::Values("fused", "all_reduce"),
                         [](const auto& info) { return info.param; });

// d = 2 - n g / 2, then g = 1 - n d / 2 of that.
TEST_P(TwoOptimizers, TheSecondStepSeesWhatTheFirstHasChanged) {
  for (const int replicas : {1, 2, 3}) {
    const double d = 2 - 0.5 * replicas;
    const std::vector<double> expected{d, 1 - 0.5 * replicas * d};
    Two threads("mirrored", replicas, GetParam());
    threads.strategy.run([&](ReplicaContext& replica) {
      threads.step_d(replica);
      threads.step_g(replica);
    });
    EXPECT_EQ(threads.values(), expected);
    Two in_turn("one_device", replicas, GetParam());
    in_turn.strategy.run([&](ReplicaContext& replica) { in_turn.step_d(replica); });
    in_turn.strategy.run([&](ReplicaContext& replica) { in_turn.step_g(replica); });
    EXPECT_EQ(in_turn.values(), expected);
  }
}

// In one run() replicas that take turns cannot see it: nothing else is trained instead.
TEST_P(TwoOptimizers, InTurnWhatHasYetToChangeIsNotRead) {
  const auto refused = [](Two& two, auto after_the_step) {
    EXPECT_THAT(
        message_of<UsageError>([&] {
          two.strategy.run([&](ReplicaContext& replica) {
            two.step_d(replica);
            after_the_step(replica, two.d.local(replica)->w);
          });
        }),
        AllOf(HasSubstr("replica 0: aten::"), HasSubstr("reads parameter \"w\" after a step"),
              HasSubstr("a run() of its own")));
    EXPECT_EQ(two.values(), (std::vector<double>{2, 1}));
    EXPECT_EQ(two.of_d.version() + two.of_g.version(), 0);
  };
  Two two("one_device", 2, GetParam());
  refused(two, [&](ReplicaContext& replica, const at::Tensor&) { two.step_g(replica); });
  refused(two, [](ReplicaContext&, at::Tensor& w) {  // as a critic's weights are clipped
    const at::NoGradGuard no_grad;
    w.clamp_(-5, 5);
  });
  refused(two, [](ReplicaContext&, const at::Tensor& w) { return (w.detach() + 1).sum(); });
  refused(two, [](ReplicaContext&, const at::Tensor& w) { return torch::stack({w, w}); });
  two.strategy.run([&](ReplicaContext& replica) { two.step_d(replica); });
  two.strategy.run([&](ReplicaContext& replica) { two.step_g(replica); });
  EXPECT_EQ(two.values(), (std::vector<double>{1, 0}));
}

// Losses of before the steps, other parameters, and views that are read once run() has returned.
TEST_P(TwoOptimizers, InTurnWhatDoesNotDependOnTheStepGoesOn) {
  for (const char* kind : {"one_device", "mirrored"}) {
    Two two(kind, 3, GetParam());
    const auto seen = two.strategy.run([&](ReplicaContext& replica) {
      auto& d = two.d.local(replica)->w;
      auto& g = two.g.local(replica)->w;
      const auto loss = (d * g).sum();
      const auto of_d = gradients(loss, std::vector{d, g});
      two.of_d.apply(replica, std::vector{of_d[0]});
      two.of_g.apply(replica, std::vector{of_d[1]});
      return d.detach();
    });
    EXPECT_EQ(two.values(), (std::vector<double>{0.5, -2}));
    for (const at::Tensor& value : seen.values()) EXPECT_EQ(value.item<double>(), 0.5) << kind;
  }
}

TEST(ZeroGrad, ClearsTheGradientsOfAnotherOptimizersLoss) {
  Two two("mirrored", 2);
  const auto steps = [&](bool clears) {
    two.strategy.run([&](ReplicaContext& replica) {
      two.of_g.minimize(replica, (two.d.local(replica)->w * two.g.local(replica)->w).sum());
      if (clears) two.of_d.zero_grad(replica);
      two.step_d(replica);
    });
  };
  steps(true);  // g = 1 - 2, d = 2 + 1
  EXPECT_EQ(two.values(), (std::vector<double>{3, -1}));
  EXPECT_THAT(message_of<UsageError>([&] { steps(false); }),
              AllOf(HasSubstr("\"w\" already has a gradient"), HasSubstr("zero_grad(replica)")));
}

TEST(ZeroGrad, DropsWhatWasAccumulated) {
  for (const char* kind : {"one_device", "mirrored"}) {
    Two two(kind, 2);
    two.strategy.run([&](ReplicaContext& replica) {
      two.of_d.accumulate(replica, 100 * two.d.local(replica)->w.sum());
      two.of_d.zero_grad(replica);
      two.step_d(replica);
      two.of_d.zero_grad(replica);  // the step stays
    });
    EXPECT_EQ(two.values(), (std::vector<double>{1, 1})) << kind;
  }
}

// Losses that are scaled wait on each replica until the last one has taken its turn.
TEST(ZeroGrad, LeavesAStepThatWaitsForOthers) {
  for (const char* kind : {"one_device", "mirrored"}) {
    Two two(kind, 2);
    two.of_d.scale_losses(optim::LossScale({.initial = 4}));
    two.strategy.run([&](ReplicaContext& replica) {
      two.step_d(replica);
      two.of_d.zero_grad(replica);
    });
    EXPECT_EQ(two.values(), (std::vector<double>{1, 1})) << kind;
  }
}

TEST(Gan, ThreadsHaveTheBitsOfThePartsInTurn) {
  for (const int replicas : {2, 3, 5})
    EXPECT_EQ(test::gan_sha(strategy_of("mirrored", replicas)),
              test::gan_sha(strategy_of("one_device", replicas)))
        << replicas;
}

}  // namespace
}  // namespace tutti
