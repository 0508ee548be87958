// What the fused step measures of gradients, against gradients that autograd gives once more.
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "tutti/sync/gradient_meter.h"

#include "tests/support/small_training.h"

namespace tutti {
namespace {

struct MeasuredSteps {
  std::vector<GradientSquares> steps, expected;
  std::vector<at::Tensor> parameters;
};

double squares_of(const at::Tensor& tensor) {
  return tensor.to(at::kDouble).square().sum().item<double>();
}

// From the gradients of every replica, each a list by parameter.
GradientSquares plainly(const std::vector<std::vector<at::Tensor>>& gradients) {
  GradientSquares all;
  std::vector<at::Tensor> sums;
  for (const auto& own : gradients) {
    double squares = 0;
    for (size_t i = 0; i < own.size(); ++i) {
      squares += squares_of(own[i]);
      const at::Tensor wide = own[i].to(at::kDouble);
      if (sums.size() <= i)
        sums.push_back(wide);
      else
        sums[i] = sums[i] + wide;
    }
    all.parts.push_back(squares);
  }
  for (const at::Tensor& sum : sums) all.sum += squares_of(sum);
  return all;
}

// An epoch of small_cnn; in its second step the last replica abstains.
MeasuredSteps train_measured(const std::string& kind, int replicas, const optim::Recipe& recipe,
                             bool measures = true) {
  Strategy strategy = test::strategy_of(kind, replicas);
  Replicated<torch::nn::Sequential> net(strategy, test::small_cnn);
  Optimizer optimizer(net, recipe);
  GradientMeter* const meter = optimizer.updater().parts().meter;
  if (measures) meter->begin_measuring();
  MeasuredSteps trained;
  for (auto&& batch : strategy.distribute(test::small_data()).epoch(0)) {
    std::vector<std::vector<at::Tensor>> gradients(static_cast<size_t>(replicas));
    strategy.run([&](ReplicaContext& replica) {
      auto [x, y] = batch.local(replica);
      const auto each =
          torch::cross_entropy_loss(net.local(replica)->forward(x), y, {}, at::Reduction::None);
      const auto loss = average_loss(each, batch.global_size());
      auto& own = gradients[static_cast<size_t>(replica.rank())];
      own = torch::autograd::grad({loss}, net.local(replica)->parameters(), {}, true);
      if (batch.step() == 1 && replica.rank() + 1 == replicas) {
        for (at::Tensor& gradient : own) gradient = at::zeros_like(gradient);
        return optimizer.abstain(replica);
      }
      optimizer.minimize(replica, loss);
    });
    trained.steps.push_back(meter->last_squares());
    trained.expected.push_back(plainly(gradients));
  }
  trained.parameters = test::copy_of(optimizer.updater().parameters(0));
  return trained;
}

std::vector<std::pair<std::string, optim::Recipe>> recipes_to_measure() {
  const optim::Rule sgd = optim::sgd({.learning_rate = 0.1, .momentum = 0.9});
  return {{"sgd", sgd},
          {"value", {sgd, {.value = 1e-3}}},
          {"global norm", {sgd, {.global_norm = 0.05}}},
          {"lamb", optim::lamb({.learning_rate = 0.01, .weight_decay = 0.1})}};
}

TEST(GradientSquares, AreThoseOfEachReplicaAndOfTheSum) {
  for (const auto& [name, recipe] : recipes_to_measure())
    for (const char* kind : {"one_device", "mirrored", "central_storage"})
      for (const int replicas : {2, 3}) {
        const auto got = train_measured(kind, replicas, recipe);
        ASSERT_EQ(got.steps.size(), 4U);
        for (size_t step = 0; step < got.steps.size(); ++step) {
          const std::string place = fmt::format("{} {} {} step {}", name, kind, replicas, step);
          ASSERT_EQ(got.steps[step].parts.size(), static_cast<size_t>(replicas)) << place;
          for (size_t part = 0; part < got.steps[step].parts.size(); ++part) {
            const double expected = got.expected[step].parts[part];
            EXPECT_NEAR(got.steps[step].parts[part], expected, 1e-10 * expected) << place;
          }
          // The sum is rounded to float32 before it is measured.
          EXPECT_NEAR(got.steps[step].sum, got.expected[step].sum, 1e-6 * got.expected[step].sum)
              << place;
        }
        EXPECT_EQ(got.steps[1].parts.back(), 0);
        EXPECT_GT(got.steps[0].parts.back(), 0);
      }
}

TEST(GradientSquares, HaveTheBitsOfThePartsInTurnAndChangeNone) {
  for (const auto& [name, recipe] : recipes_to_measure())
    for (const int replicas : {2, 3}) {
      const auto in_turn = train_measured("one_device", replicas, recipe);
      const auto threads = train_measured("mirrored", replicas, recipe);
      for (size_t step = 0; step < in_turn.steps.size(); ++step) {
        EXPECT_EQ(in_turn.steps[step].parts, threads.steps[step].parts) << name << step;
        EXPECT_EQ(in_turn.steps[step].sum, threads.steps[step].sum) << name << step;
      }
      for (const char* kind : {"one_device", "mirrored"}) {
        const auto without = train_measured(kind, replicas, recipe, false);
        EXPECT_TRUE(without.steps[0].parts.empty());
        EXPECT_TRUE(bits_equal(in_turn.parameters, without.parameters)) << name << " " << kind;
      }
      EXPECT_TRUE(bits_equal(in_turn.parameters, threads.parameters)) << name;
    }
}

TEST(GradientSquares, OfAStepThatWasLeftOutThereAreNone) {
  for (const char* kind : {"one_device", "mirrored"}) {
    Strategy strategy = test::strategy_of(kind, 2);
    Replicated<torch::nn::Sequential> net(strategy, test::small_cnn);
    Optimizer optimizer(net, optim::sgd());
    optimizer.updater().parts().meter->begin_measuring();
    const auto measured = [&] {
      return optimizer.updater().parts().meter->last_squares().parts.size();
    };
    for (auto&& batch : strategy.distribute(test::small_data()).epoch(0)) {
      test::train_step(strategy, net, optimizer, batch);
      EXPECT_EQ(measured(), 2U);
      strategy.run([&](ReplicaContext& replica) {
        if (replica.rank() == 0) return optimizer.leave_out(replica);
        auto [x, y] = batch.local(replica);
        optimizer.minimize(replica, net.local(replica)->forward(x).sum());
      });
      EXPECT_EQ(measured(), 0U);
    }
  }
}

TEST(GradientSquares, AreThoseOfTheFirstUpdatesAndThenOfEveryEighth) {
  for (const char* kind : {"one_device", "mirrored"}) {
    Strategy strategy = test::strategy_of(kind, 2);
    Replicated<torch::nn::Sequential> net(strategy, test::small_cnn);
    Optimizer optimizer(net, optim::sgd());
    optimizer.updater().parts().meter->begin_measuring();
    auto batches = strategy.distribute(test::small_data());
    std::vector<int64_t> measured;
    for (int64_t epoch = 0; epoch < 22; ++epoch)
      for (auto&& batch : batches.epoch(epoch)) {
        const int64_t before = optimizer.version();
        test::train_step(strategy, net, optimizer, batch);
        const GradientSquares& squares = optimizer.updater().parts().meter->last_squares();
        EXPECT_EQ(squares.parts.size(), before < 64 || before % 8 == 0 ? 2U : 0U) << kind << before;
        if (squares.parts.empty()) continue;
        EXPECT_EQ(squares.updates, before < 64 ? 1 : 8) << kind << before;
        measured.push_back(before);
      }
    EXPECT_EQ(measured.size(), 64U + 3U);
    EXPECT_EQ(measured[65], 72);
  }
}

TEST(GradientSquares, GoOnInAnotherWorld) {
  Strategy strategy = test::strategy_of("mirrored", 2);
  Replicated<torch::nn::Sequential> net(strategy, test::small_cnn);
  Optimizer optimizer(net, optim::sgd());
  optimizer.updater().parts().meter->begin_measuring();
  for (const int replicas : {3, 1, 2}) {
    strategy.resize(replicas);
    for (auto&& batch : strategy.distribute(test::small_data()).epoch(0))
      test::train_step(strategy, net, optimizer, batch);
    EXPECT_EQ(optimizer.updater().parts().meter->last_squares().parts.size(),
              static_cast<size_t>(replicas == 1 ? 0 : replicas));
  }
}

}  // namespace
}  // namespace tutti
