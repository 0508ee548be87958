// Gradients that wait for their update, and losses that are scaled, in a loop of one's own.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <limits>

#include "tutti/base/error.h"

#include "tests/support/message_of.h"
#include "tests/support/small_training.h"

namespace tutti {
namespace {

using test::bits_equal;
using test::copy_of;
using test::options_of;
using test::relative_difference;
using test::strategy_of;
using testing::HasSubstr;

using UpdateRules = std::vector<std::pair<const char*, optim::Recipe>>;

// Of large epsilon: see training_test.cpp.
optim::Rule calm_adam() { return optim::adam({.learning_rate = 0.01, .epsilon = 1e-4}); }

UpdateRules update_rules() {
  return {{"adam", calm_adam()},
          {"clipped", optim::Recipe(calm_adam(), {.global_norm = 0.1})},
          {"lamb", optim::lamb({.learning_rate = 0.01})}};
}

// Trains small_cnn for one epoch, `count` batches of `size` to an update.
std::vector<at::Tensor> accumulated(const StrategyOptions& options, const optim::Recipe& recipe,
                                    int64_t size, int64_t count) {
  Strategy strategy(options);
  Replicated<torch::nn::Sequential> net(strategy, test::small_cnn);
  Optimizer optimizer(net, recipe);
  int64_t updates = 0;
  for (auto&& batch : strategy.distribute(test::small_data().batch(size)).epoch(0)) {
    strategy.run([&](ReplicaContext& replica) {
      if (batch.local_size(replica) == 0) {
        if (batch.ends_group(count)) optimizer.abstain(replica);
        return;
      }
      auto [x, y] = batch.local(replica);
      const auto each =
          torch::cross_entropy_loss(net.local(replica)->forward(x), y, {}, at::Reduction::None);
      const auto loss = average_loss(each, batch.group_size(count));
      if (batch.ends_group(count))
        optimizer.minimize(replica, loss);
      else
        optimizer.accumulate(replica, loss);
    });
    updates += batch.ends_group(count) ? 1 : 0;
    EXPECT_EQ(optimizer.version(), updates);
  }
  return copy_of(optimizer.updater().parameters(0));
}

TEST(Accumulation, HasTheBitsOfThePartsInTurnAndTheWeightsOfOneLargeBatch) {
  // 50 samples: batches of 4, three to an update, and a last group of 2; then ones that leave
  // replicas without samples in all batches or in the last.
  const std::pair<int64_t, int64_t> groups[] = {{4, 3}, {2, 7}, {16, 4}, {49, 2}};
  for (const auto& [name, recipe] : update_rules())
    for (const auto& [size, count] : groups)
      for (const int replicas : {1, 3, 5}) {
        const auto in_turn = accumulated(options_of("one_device", replicas), recipe, size, count);
        auto reduced = options_of("mirrored", replicas);
        reduced.reduction = "all_reduce";
        for (const auto& options : {options_of("mirrored", replicas), reduced})
          EXPECT_TRUE(bits_equal(accumulated(options, recipe, size, count), in_turn))
              << name << " " << options.reduction << " " << size << " x " << count << ", "
              << replicas;
        const auto large = accumulated(options_of("one_device", 1), recipe, size * count, 1);
        EXPECT_LT(relative_difference(in_turn, large), 2e-5)
            << name << " " << size << " x " << count << ", " << replicas;
      }
}

TEST(Accumulation, GroupsEndWithTheEpoch) {
  Strategy strategy = strategy_of("one_device", 1);
  std::vector<std::array<int64_t, 3>> seen;
  for (auto&& batch : strategy.distribute(test::small_data()).epoch(0))
    seen.push_back({batch.group_size(3), batch.group_row(3), batch.ends_group(3) ? 1 : 0});
  EXPECT_THAT(seen, testing::ElementsAre(
                        std::array<int64_t, 3>{48, 0, 0}, std::array<int64_t, 3>{48, 16, 0},
                        std::array<int64_t, 3>{48, 32, 1}, std::array<int64_t, 3>{2, 0, 1}));
  const auto batch = *strategy.distribute(test::small_data()).epoch(0).begin();
  EXPECT_THAT(test::message_of<UsageError>([&] { batch.group_size(0); }),
              HasSubstr("group of 0 batches"));
}

// Two weights and losses made by hand.
struct Pair : torch::nn::Module {
  Pair() {
    a = register_parameter("a", torch::ones({3}));
    b = register_parameter("b", torch::ones({3}));
  }
  at::Tensor a, b;
};

struct PairBench {
  explicit PairBench(const std::string& kind, int replicas,
                     const optim::Recipe& recipe = optim::sgd({.learning_rate = 1.0}))
      : strategy(strategy_of(kind, replicas)),
        net(strategy, [] { return std::make_shared<Pair>(); }),
        optimizer(net, recipe) {}
  at::Tensor a() { return optimizer.updater().parameters(0)[0].detach().clone(); }
  at::Tensor b() { return optimizer.updater().parameters(0)[1].detach().clone(); }

  Strategy strategy;
  Replicated<Pair> net;
  Optimizer optimizer;
};

bool all_are(const at::Tensor& tensor, double value) {
  return at::equal(tensor, at::full_like(tensor, value));
}

// view_as hands the same buffer on as a gradient of another tensor: added to in place, each of the
// two would count twice.
TEST(Accumulation, GradientsOfTwoParametersMayShareOneBuffer) {
  for (const int passes : {1, 2, 3}) {
    PairBench bench("mirrored", 2);
    bench.strategy.run([&](ReplicaContext& replica) {
      const auto loss = [&] {
        const Pair& net = *bench.net.local(replica);
        return ((net.a.view({3}) + net.b.view({3})) * torch::full({3}, 2.0)).sum();
      };
      for (int pass = 0; pass < passes; ++pass) bench.optimizer.accumulate(replica, loss());
      bench.optimizer.minimize(replica, loss());
    });
    EXPECT_TRUE(all_are(bench.a(), 1 - 4.0 * (passes + 1))) << bench.a();
    EXPECT_TRUE(all_are(bench.b(), 1 - 4.0 * (passes + 1))) << bench.b();
  }
}

// Nobody waits for anybody before the update: replicas make as many passes as they have batches.
TEST(Accumulation, ReplicasMakeDifferentNumbersOfPasses) {
  for (const char* kind : {"one_device", "mirrored"})
    for (const char* reduction : {"fused", "all_reduce"}) {
      auto options = options_of(kind, 3);
      options.reduction = reduction;
      Strategy strategy(options);
      Replicated<Pair> net(strategy, [] { return std::make_shared<Pair>(); });
      Optimizer optimizer(net, optim::sgd({.learning_rate = 1.0}));
      strategy.run([&](ReplicaContext& replica) {
        const Pair& own = *net.local(replica);
        for (int pass = 0; pass < 3 * replica.rank(); ++pass)
          optimizer.accumulate(replica, own.a.sum());
        if (replica.rank() == 1) return optimizer.minimize(replica, own.b.sum());
        optimizer.abstain(replica);  // replica 0 has nothing at all
      });
      const auto& parameters = optimizer.updater().parameters(0);
      EXPECT_TRUE(all_are(parameters[0].detach(), 1.0 - 3 - 6)) << kind << " " << reduction;
      EXPECT_TRUE(all_are(parameters[1].detach(), 0.0)) << kind << " " << reduction;
      EXPECT_EQ(optimizer.version(), 1);
    }
}

TEST(Accumulation, AResizeLosesNoGradient) {
  PairBench bench("mirrored", 3);
  bench.strategy.run([&](ReplicaContext& replica) {
    bench.optimizer.accumulate(replica, bench.net.local(replica)->a.sum());
  });
  bench.strategy.resize(2);
  bench.strategy.run([&](ReplicaContext& replica) { bench.optimizer.abstain(replica); });
  EXPECT_TRUE(all_are(bench.a(), -2));
}

TEST(Accumulation, AStrayGradientIsNamedAndForgettingBeginsAnew) {
  PairBench bench("one_device", 2);
  bench.strategy.run([&](ReplicaContext& replica) {
    const Pair& net = *bench.net.local(replica);
    bench.optimizer.accumulate(replica, net.a.sum());
    net.b.sum().backward();
    EXPECT_THAT(
        test::message_of<UsageError>([&] { bench.optimizer.accumulate(replica, net.a.sum()); }),
        HasSubstr("\"b\""));
    EXPECT_THAT(test::message_of<UsageError>(
                    [&] { bench.optimizer.accumulate(replica, torch::ones({2})); }),
                HasSubstr("accumulate: expected a loss of one element"));
    bench.net.local(replica)->zero_grad();
  });
  bench.optimizer.forget_accumulated();
  bench.strategy.run([&](ReplicaContext& replica) { bench.optimizer.abstain(replica); });
  EXPECT_TRUE(all_are(bench.a(), 1));
  EXPECT_EQ(bench.optimizer.version(), 1);
}

// ---- losses that are scaled ----

constexpr double kInfinite = std::numeric_limits<double>::infinity();

// Steps 1 and 3 of five overflow on one replica, in a pass before the last.
std::vector<at::Tensor> scaled(const std::string& kind, const std::string& reduction,
                               const optim::Recipe& recipe, bool overflows, bool scales) {
  auto options = options_of(kind, 3);
  options.reduction = reduction;
  Strategy strategy(options);
  Replicated<torch::nn::Sequential> net(strategy, test::small_cnn);
  Optimizer optimizer(net, recipe);
  if (scales) optimizer.scale_losses(optim::LossScale({.initial = 1024, .growth_interval = 2}));
  std::vector<double> scales_seen;
  const auto data = strategy.distribute(test::small_data()).epoch(0);
  for (int step = 0; step < 5; ++step) {
    const bool bad = step % 2 == 1;
    if (bad && !overflows) continue;
    strategy.run([&](ReplicaContext& replica) {
      auto [x, y] = (*data.begin()).local(replica);
      const auto loss = [&] {
        return torch::cross_entropy_loss(net.local(replica)->forward(x), y, {},
                                         at::Reduction::Sum) /
               32;
      };
      const auto first = bad && replica.rank() == 1 ? loss() * kInfinite : loss();
      optimizer.accumulate(replica, first);
      optimizer.minimize(replica, loss());
    });
    if (scales) scales_seen.push_back(optimizer.loss_scale()->value());
  }
  EXPECT_EQ(optimizer.version(), overflows ? 5 : 3);
  if (scales && overflows) {
    EXPECT_THAT(scales_seen, testing::ElementsAre(1024, 512, 512, 256, 256));
    EXPECT_EQ(optimizer.loss_scale()->skipped(), 2);
  }
  return copy_of(optimizer.updater().parameters(0));
}

TEST(ScaledLosses, AnOverflowAnywhereLeavesTheStepOutEverywhere) {
  for (const auto& [name, recipe] : update_rules()) {
    // Powers of two round nothing: the scale is not to be seen.
    const auto plain = scaled("one_device", "fused", recipe, false, false);
    for (const char* kind : {"one_device", "mirrored", "central_storage"})
      for (const char* reduction : {"fused", "all_reduce"}) {
        if (std::string(kind) == "central_storage" && std::string(reduction) != "fused") continue;
        EXPECT_TRUE(bits_equal(scaled(kind, reduction, recipe, true, true), plain))
            << name << " " << kind << " " << reduction;
      }
  }
}

TEST(ScaledLosses, ATurnThatEndedInAnErrorLeavesNothingBehind) {
  PairBench bench("one_device", 2);
  bench.optimizer.scale_losses(optim::LossScale{});
  const auto step = [&](bool fails) {
    bench.strategy.run([&](ReplicaContext& replica) {
      if (fails && replica.rank() == 1) throw Error("mine");
      if (!fails && replica.rank() == 0) return bench.optimizer.abstain(replica);
      bench.optimizer.minimize(replica, bench.net.local(replica)->a.sum());
    });
  };
  EXPECT_THROW(step(true), Error);
  step(false);
  EXPECT_TRUE(all_are(bench.a(), 0)) << "of replica 1 alone";
}

TEST(ScaledLosses, AGrownWorldGoesOnWithTheScale) {
  PairBench bench("mirrored", 1);
  bench.optimizer.scale_losses(optim::LossScale({.initial = 64, .growth_interval = 1}));
  const auto step = [&] {
    bench.strategy.run([&](ReplicaContext& replica) {
      bench.optimizer.minimize(replica, bench.net.local(replica)->a.sum());
    });
  };
  step();
  bench.strategy.resize(3);
  step();
  EXPECT_EQ(bench.optimizer.loss_scale()->value(), 256);
  EXPECT_TRUE(all_are(bench.a(), 1 - 1 - 3));
}

}  // namespace
}  // namespace tutti
