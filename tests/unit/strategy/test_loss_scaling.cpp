// Losses whose gradients, summed over replicas, are those of the whole; gradients without
// backward().
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tutti/base/error.h"
#include "tutti/strategy/input/distributed_dataset.h"
#include "tutti/strategy/modules/replicated.h"
#include "tutti/strategy/optimizer/loss_scaling.h"

#include "tests/support/message_of.h"
#include "tests/support/small_training.h"

namespace tutti {
namespace {

using test::message_of;
using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(AverageLoss, PartsAddUpToTheMeanOverTheGlobalBatch) {
  const at::Tensor losses = torch::tensor({1.0, 2.0, 4.0, 8.0, 16.0}, at::kDouble);
  for (int replicas : {1, 2, 3}) {
    Strategy strategy = test::strategy_of("mirrored", replicas);
    const auto parts = strategy.run([&](ReplicaContext& replica) {
      const auto mine = data::share(5, replicas, replica.rank());
      return average_loss(losses.slice(0, mine.begin, mine.end), 5);
    });
    EXPECT_DOUBLE_EQ(strategy.reduce(ReduceOp::sum, parts).item<double>(), 31.0 / 5);
  }
}

// What D5 of tf.distribute warns of: the mean of the replicas' means is not the mean.
TEST(AverageLoss, MeanOfMeansIsSomethingElseForUnevenParts) {
  Strategy strategy = test::strategy_of("mirrored", 2);
  const auto means = strategy.run([](ReplicaContext& replica) {
    return torch::full({replica.rank() == 0 ? 3 : 1}, 2.0 + replica.rank(), at::kDouble).mean();
  });
  EXPECT_EQ(strategy.reduce(ReduceOp::mean, means).item<double>(), 2.5);
  const auto parts = strategy.run([](ReplicaContext& replica) {
    return average_loss(
        torch::full({replica.rank() == 0 ? 3 : 1}, 2.0 + replica.rank(), at::kDouble), 4);
  });
  EXPECT_EQ(strategy.reduce(ReduceOp::sum, parts).item<double>(), 9.0 / 4);
}

TEST(AverageLoss, WeightsMultiplyAndTheCountStays) {
  const at::Tensor losses = torch::tensor({{1.0, 3.0}, {2.0, 0.0}}, at::kDouble).requires_grad_();
  const at::Tensor weights = torch::tensor({0.5, 0.0}, at::kFloat);
  const at::Tensor loss = average_loss(losses, weights, 4);
  EXPECT_EQ(loss.item<double>(), 0.5);
  loss.backward();
  EXPECT_TRUE(at::equal(losses.grad(), torch::tensor({{0.125, 0.125}, {0.0, 0.0}}, at::kDouble)));
}

// Parts of 3, 2 and no samples, beside one replica with all of them and LibTorch's own step.
TEST(MinimizePerSample, TrainsOnTheMeanOverTheGlobalBatch) {
  const at::Tensor x = torch::tensor({1.0F, 2.0F, 3.0F, 4.0F, 5.0F}).unsqueeze(1);
  const auto trained = [&](const std::string& kind, int replicas, bool averaged_before) {
    Strategy strategy = test::strategy_of(kind, replicas);
    Replicated<torch::nn::Linear> net(strategy, [] { return torch::nn::Linear(1, 1); });
    Optimizer optimizer(net, optim::sgd({.learning_rate = 0.1}));
    strategy.run([&](ReplicaContext& replica) {
      const int64_t begin = replica.rank() * 3, end = std::min<int64_t>(5, begin + 3);
      const auto own = replicas == 1 ? x : x.slice(0, std::min<int64_t>(begin, 5), end);
      const auto each = (net.local(replica)(own) - 2 * own).square();
      if (averaged_before)
        optimizer.minimize(replica, average_loss(each, 5));
      else
        optimizer.minimize(replica, each, 5);
    });
    return test::copy_of(optimizer.updater().parameters(0));
  };
  torch::nn::Linear plain = [&] {
    Strategy strategy = test::strategy_of("one_device", 1);
    Replicated<torch::nn::Linear> net(strategy, [] { return torch::nn::Linear(1, 1); });
    return torch::nn::Linear(
        std::dynamic_pointer_cast<torch::nn::LinearImpl>(net.modules().module(0)->clone()));
  }();
  torch::mse_loss(plain(x), 2 * x).backward();
  torch::optim::SGD(plain->parameters(), 0.1).step();
  for (const char* kind : {"one_device", "mirrored"})
    for (const int replicas : {1, 3}) {
      const auto own = trained(kind, replicas, false);
      EXPECT_TRUE(test::bits_equal(own, trained(kind, replicas, true)));
      EXPECT_LT(test::relative_difference(own, test::copy_of(plain->parameters())), 1e-6);
    }
}

TEST(MinimizePerSample, RefusesWhatIsAveragedAlready) {
  Strategy strategy = test::strategy_of("one_device", 1);
  Replicated<torch::nn::Linear> net(strategy, [] { return torch::nn::Linear(1, 1); });
  Optimizer optimizer(net, optim::sgd());
  EXPECT_THAT(message_of<UsageError>([&] {
                strategy.run([&](ReplicaContext& replica) {
                  optimizer.minimize(replica, net.local(replica)(torch::ones({2, 1})).mean(), 2);
                });
              }),
              HasSubstr("averaged already"));
}

TEST(AverageLoss, OfNoSamplesIsZeroWithAGraph) {
  const at::Tensor w = torch::ones({1}).requires_grad_();
  const at::Tensor loss = average_loss(torch::zeros({0}) * w, torch::zeros({0}), 8);
  EXPECT_EQ(loss.item<float>(), 0);
  EXPECT_TRUE(loss.requires_grad());
}

TEST(AverageLoss, RefusesWhatIsAveragedAlready) {
  EXPECT_THAT(message_of<UsageError>([] { average_loss(torch::ones({}), 4); }),
              AllOf(HasSubstr("got a scalar"), HasSubstr("Reduction::None")));
  EXPECT_THAT(message_of<UsageError>([] { average_loss(torch::ones({2}), 0); }),
              HasSubstr("0 samples"));
  for (const auto& weights : {torch::ones({3}), torch::ones({2, 1}), torch::ones({2}, at::kLong)})
    EXPECT_THAT(message_of<UsageError>([&] { average_loss(torch::ones({2}), weights, 4); }),
                HasSubstr("expected floating [2], one a sample"));
}

TEST(RegularizationLoss, IsCountedOnceByAllReplicasTogether) {
  for (const char* kind : {"one_device", "mirrored"}) {
    Strategy strategy = test::strategy_of(kind, 3);
    const auto parts = strategy.run([](ReplicaContext& replica) {
      return scale_regularization_loss(replica, torch::tensor({4.0, 5.0}, at::kDouble));
    });
    EXPECT_DOUBLE_EQ(strategy.reduce(ReduceOp::sum, parts).item<double>(), 9.0);
  }
}

// ---- gradients() and Optimizer::apply ----

test::MakeOptimizer adam_by(const std::string& how) {
  return [how](const ReplicatedModules& net) {
    const auto rule = optim::adam({.learning_rate = 0.01});
    return how == "fused" ? Optimizer(net, rule) : Optimizer(net, rule, ReplicatedOptions{});
  };
}

// test::train by gradients() and apply().
std::vector<at::Tensor> train_by_gradients(Strategy strategy, const std::string& how) {
  Replicated<torch::nn::Sequential> net(strategy, test::small_cnn);
  Optimizer optimizer = adam_by(how)(net);
  auto batches = strategy.distribute(test::small_data());
  for (int epoch = 0; epoch < 2; ++epoch)
    for (auto&& batch : batches.epoch(epoch))
      strategy.run([&](ReplicaContext& replica) {
        auto [x, y] = batch.local(replica);
        const auto each =
            torch::cross_entropy_loss(net.local(replica)->forward(x), y, {}, at::Reduction::None);
        const auto all =
            gradients(average_loss(each, batch.global_size()), optimizer.parameters(replica));
        for (const auto& parameter : optimizer.parameters(replica))
          EXPECT_FALSE(parameter.grad().defined());
        optimizer.apply(replica, all);
      });
  return test::copy_of(optimizer.updater().parameters(0));
}

TEST(Gradients, AppliedTheyAreTheBitsOfMinimize) {
  for (const char* kind : {"one_device", "mirrored"})
    for (const std::string how : {"fused", "replicated"}) {
      const auto expected = test::train(test::strategy_of(kind, 2), adam_by(how)).parameters;
      EXPECT_TRUE(test::bits_equal(train_by_gradients(test::strategy_of(kind, 2), how), expected))
          << kind << how;
    }
}

TEST(Gradients, OfWhatTheLossDoesNotUseAreUndefined) {
  const std::vector<at::Tensor> parameters{torch::ones({2}).requires_grad_(),
                                           torch::ones({3}).requires_grad_()};
  const auto all = gradients((3 * parameters[0]).sum(), parameters);
  EXPECT_TRUE(at::equal(all[0], torch::full({2}, 3.0F)));
  EXPECT_FALSE(all[1].defined());
  EXPECT_FALSE(parameters[0].grad().defined());
}

TEST(Gradients, FrozenParametersHaveNoneAndStay) {
  for (const char* kind : {"one_device", "mirrored"})
    for (const std::string how : {"fused", "replicated"}) {
      Strategy strategy = test::strategy_of(kind, 2);
      Replicated<torch::nn::Linear> net(strategy, [] {
        torch::nn::Linear made(2, 1);
        torch::nn::init::zeros_(made->bias);
        made->weight.set_requires_grad(false);
        return made;
      });
      const at::Tensor before = net.modules().module(0)->parameters()[0].detach().clone();
      Optimizer optimizer = adam_by(how)(net);
      strategy.run([&](ReplicaContext& replica) {
        const auto loss = average_loss(net.local(replica)(torch::ones({2, 2})), 4);
        const auto all = gradients(loss, optimizer.parameters(replica));
        EXPECT_FALSE(all.at(0).defined());
        EXPECT_TRUE(at::equal(all.at(1), torch::full({1}, 0.5F)));
        optimizer.apply(replica, all);
      });
      const auto& trained = optimizer.updater().parameters(0);
      EXPECT_TRUE(at::equal(trained[0], before)) << kind << how;
      EXPECT_LT(trained[1].item<float>(), 0) << kind << how;
      EXPECT_EQ(optimizer.version(), 1);
    }
}

TEST(RegularizationLoss, AnUndefinedOneIsRefused) {
  Strategy strategy = test::strategy_of("mirrored", 2);
  EXPECT_THAT(message_of<UsageError>([&] {
                strategy.run([](ReplicaContext& replica) {
                  return scale_regularization_loss(replica, at::Tensor());
                });
              }),
              HasSubstr("scale_regularization_loss: the tensor of losses is undefined"));
}

TEST(Gradients, WrongOnesAreRefused) {
  const std::vector<at::Tensor> parameters{torch::ones({2}).requires_grad_()};
  const std::vector<at::Tensor> constants{torch::ones({2})};
  EXPECT_THAT(message_of<UsageError>([&] { gradients(2 * parameters[0], parameters); }),
              HasSubstr("one element"));
  EXPECT_THAT(message_of<UsageError>([&] { gradients(torch::ones({}), parameters); }),
              HasSubstr("one without a graph"));
  EXPECT_THAT(message_of<UsageError>([&] { gradients(parameters[0].sum(), constants); }),
              HasSubstr("none of the 1 parameters requires gradients"));
  Strategy strategy = test::strategy_of("mirrored", 2);
  Replicated<torch::nn::Linear> net(strategy, [] { return torch::nn::Linear(3, 1); });
  Optimizer optimizer(net, optim::sgd());
  EXPECT_THAT(message_of<UsageError>([&] {
                strategy.run([&](ReplicaContext& replica) { optimizer.apply(replica, {}); });
              }),
              HasSubstr("got 0 gradients for 2 parameters"));
}

}  // namespace
}  // namespace tutti
