// N replicas train the same model as one: against the parts in turn (bit for bit) and against a
// plain LibTorch loop (within rounding). Batch norms that are frozen infer meanwhile.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tutti/base/error.h"

#include "tests/support/small_training.h"

namespace tutti {
namespace {

using test::bits_equal;
using test::copy_of;
using test::options_of;
using test::relative_difference;
using test::strategy_of;
using test::Trained;

constexpr double kLearningRate = 0.01;
// Adam's first step is g / (|g| + epsilon): with a tiny epsilon the rounding of gradients that
// almost vanish would decide it, on any implementation.
constexpr double kEpsilon = 1e-4;
enum class How { fused, replicated_rule, replicated_torch };

Optimizer make_optimizer(const ReplicatedModules& modules, How how) {
  const auto rule = optim::adam({.learning_rate = kLearningRate, .epsilon = kEpsilon});
  if (how == How::fused) return Optimizer(modules, rule);
  if (how == How::replicated_rule)
    return Optimizer(modules, rule,
                     ReplicatedOptions{.bucket_bytes = 2048, .first_bucket_bytes = 256});
  return Optimizer(modules, [](std::vector<at::Tensor> parameters) {
    return std::make_unique<torch::optim::Adam>(
        parameters, torch::optim::AdamOptions(kLearningRate).eps(kEpsilon));
  });
}

Trained train(const Strategy& strategy, How how, int epochs = 2) {
  return test::train(
      strategy, [how](const ReplicatedModules& modules) { return make_optimizer(modules, how); },
      epochs);
}

class ManyReplicas : public ::testing::TestWithParam<int> {};

TEST_P(ManyReplicas, ThreadsHaveTheBitsOfThePartsInTurn) {
  const auto in_turn = train(strategy_of("one_device", GetParam()), How::fused);
  const auto threads = train(strategy_of("mirrored", GetParam()), How::fused);
  const auto again = train(strategy_of("mirrored", GetParam()), How::fused);
  EXPECT_TRUE(bits_equal(in_turn.parameters, threads.parameters));
  EXPECT_TRUE(bits_equal(threads.parameters, again.parameters));
  EXPECT_EQ(in_turn.losses, threads.losses);
}

TEST_P(ManyReplicas, FusedStepHasTheBitsOfAllReduceAndStep) {
  const auto fused = train(strategy_of("mirrored", GetParam()), How::fused);
  const auto replicated = train(strategy_of("mirrored", GetParam()), How::replicated_rule);
  EXPECT_TRUE(bits_equal(fused.parameters, replicated.parameters));
}

TEST_P(ManyReplicas, TorchOptimizerHasTheBitsOfThePartsInTurn) {
  const auto in_turn = train(strategy_of("one_device", GetParam()), How::replicated_torch);
  const auto threads = train(strategy_of("mirrored", GetParam()), How::replicated_torch);
  EXPECT_TRUE(bits_equal(in_turn.parameters, threads.parameters));
}

TEST_P(ManyReplicas, OneStepAgreesWithPlainLibTorch) {
  for (const char* kind : {"one_device", "mirrored"})
    for (How how : {How::fused, How::replicated_rule, How::replicated_torch}) {
      Strategy strategy = strategy_of(kind, GetParam());
      Replicated<torch::nn::Sequential> net(strategy, test::small_cnn);
      auto start =
          std::dynamic_pointer_cast<torch::nn::SequentialImpl>(net.modules().module(0)->clone());
      Optimizer optimizer = make_optimizer(net, how);
      auto epoch = test::small_data().epoch({.epoch = 0, .seed = 11});
      auto whole = epoch.batch(0);
      const std::vector<test::PlainStep> steps = {
          {tensor_of(whole.columns[0]), tensor_of(whole.columns[1])}};
      const auto expected =
          test::train_plainly(torch::nn::Sequential(start), steps, kLearningRate, kEpsilon);
      auto batches = strategy.distribute(test::small_data()).epoch(0);
      const auto batch = *batches.begin();
      test::train_step(strategy, net, optimizer, batch);
      EXPECT_LT(relative_difference(copy_of(optimizer.updater().parameters(0)), expected), 1e-5)
          << kind << " " << static_cast<int>(how);
      EXPECT_EQ(optimizer.version(), 1);
    }
}

// 5 replicas: global batches of 2 leave three of them without samples.
INSTANTIATE_TEST_SUITE_P(Replicas, ManyReplicas, ::testing::Values(1, 2, 3, 4, 5));

// Their states begin at other numbers than zero.
TEST(Rules, WithStatesOfTheirOwnHaveTheBitsOfThePartsInTurn) {
  const optim::Rule rules[] = {optim::adagrad({.initial_accumulator = 0.3}),
                               optim::ftrl({.learning_rate = 0.1, .initial_accumulator = 0.2})};
  for (const optim::Rule& rule : rules) {
    const auto with = [&](const char* kind, const std::string& reduction) {
      auto options = options_of(kind, 3);
      options.reduction = reduction;
      return test::train(
          Strategy(options),
          [&](const ReplicatedModules& modules) { return Optimizer(modules, rule); }, 1);
    };
    const auto in_turn = with("one_device", "fused");
    EXPECT_TRUE(bits_equal(in_turn.parameters, with("mirrored", "fused").parameters))
        << rule.name();
    EXPECT_TRUE(bits_equal(in_turn.parameters, with("mirrored", "all_reduce").parameters))
        << rule.name();
  }
}

TEST(ReductionShapes, ChangeTheBitsAndNothingElse) {
  auto flat_options = options_of("one_device", 6);
  auto hosts_options = flat_options;
  hosts_options.reduction_shape = "2x3";
  const auto flat = train(Strategy(flat_options), How::fused);
  const auto hosts = train(Strategy(hosts_options), How::fused);
  EXPECT_LT(relative_difference(flat.parameters, hosts.parameters), 1e-4);
  auto same = flat_options;
  same.replicas = 4;
  auto pairs = same;
  pairs.reduction_shape = "2x2";
  EXPECT_TRUE(bits_equal(train(Strategy(same), How::fused).parameters,
                         train(Strategy(pairs), How::fused).parameters));
}

TEST(Shares, UnequalOnesHaveTheBitsOfThePartsInTurn) {
  auto threads = options_of("mirrored", 3);
  threads.shares = {3, 1, 2};
  auto in_turn = threads;
  in_turn.kind = "one_device";
  const auto weights = train(Strategy(threads), How::fused).parameters;
  EXPECT_TRUE(bits_equal(weights, train(Strategy(in_turn), How::fused).parameters));
  EXPECT_FALSE(bits_equal(weights, train(strategy_of("mirrored", 3), How::fused).parameters));
  threads.shares = {3, 1};
  EXPECT_THROW(Strategy{threads}, UsageError);
  threads.shares = {1, 0, 1};
  EXPECT_THROW(Strategy{threads}, UsageError);
}

TEST(Resize, KeepsParametersAndOptimizerState) {
  // The same steps by hand: two on three replicas, the rest on two.
  const auto steps_with = [](Strategy strategy) {
    Replicated<torch::nn::Sequential> net(strategy, test::small_cnn);
    Optimizer optimizer = make_optimizer(net, How::fused);
    auto batches = strategy.distribute(test::small_data());
    const auto step = [&](int64_t number) {
      auto epoch = batches.epoch(0);
      DistributedBatch batch = *DistributedDataset::Batches::iterator(&epoch, number);
      test::train_step(strategy, net, optimizer, batch);
    };
    step(0);
    step(1);
    strategy.resize(2);
    EXPECT_EQ(strategy.world().generation, 1);
    EXPECT_EQ(net.modules().size(), 2);
    step(2);
    step(3);
    EXPECT_EQ(optimizer.version(), 4);
    return copy_of(optimizer.updater().parameters(1));
  };
  const auto threads = steps_with(strategy_of("mirrored", 3));
  const auto in_turn = steps_with(strategy_of("one_device", 3));
  EXPECT_TRUE(bits_equal(threads, in_turn));
  const auto unbroken = train(strategy_of("one_device", 1), How::fused, 1);
  EXPECT_LT(relative_difference(threads, unbroken.parameters), 1e-3);
}

TEST(Resize, LeavesBuffersToTheReplicasThatStay) {
  Strategy strategy = strategy_of("mirrored", 3);
  Replicated<torch::nn::BatchNorm1d> net(strategy, [] { return torch::nn::BatchNorm1d(2); });
  const auto mean = [&](int local) { return net.modules().module(local)->buffers()[0]; };
  for (int local = 0; local < 3; ++local) mean(local).fill_(local);
  strategy.resize(2);
  EXPECT_EQ(mean(1)[0].item<float>(), 1);
  strategy.resize(3);
  EXPECT_EQ(mean(1)[0].item<float>(), 1);
  EXPECT_EQ(mean(2)[0].item<float>(), 0) << "a new one starts as the first";
}

TEST(LearningRate, OutOfRangeIsRefusedAndNothingIsTorn) {
  for (How how : {How::fused, How::replicated_rule}) {
    Strategy strategy = strategy_of("mirrored", 2);
    Replicated<torch::nn::Sequential> net(strategy, test::small_cnn);
    Optimizer optimizer = make_optimizer(net, how);
    for (double wrong : {-0.1, std::nan(""), HUGE_VAL})
      EXPECT_THROW(optimizer.set_learning_rate(wrong), UsageError);
    EXPECT_EQ(optimizer.learning_rate(), kLearningRate);
    auto batches = strategy.distribute(test::small_data()).epoch(0);
    test::train_step(strategy, net, optimizer, *batches.begin());
    EXPECT_EQ(optimizer.version(), 1);
  }
}

TEST(PerReplica, HoldsTruthValues) {
  Strategy strategy = strategy_of("mirrored", 2);
  const auto odd = strategy.run([](ReplicaContext& replica) { return replica.rank() == 1; });
  EXPECT_FALSE(odd.local(0));
  EXPECT_TRUE(odd.local(1));
}

TEST(Resize, GrowsToo) {
  Strategy strategy = strategy_of("mirrored", 1);
  Replicated<torch::nn::Sequential> net(strategy, test::small_cnn);
  Optimizer optimizer = make_optimizer(net, How::fused);
  strategy.resize(3);
  EXPECT_EQ(net.modules().size(), 3);
  EXPECT_TRUE(bits_equal(optimizer.updater().parameters(0), optimizer.updater().parameters(2)));
}

TEST(Modules, OutliveTheirStrategyAndOptimizer) {
  std::shared_ptr<torch::nn::Module> module;
  double before = 0;
  {
    Strategy strategy = strategy_of("mirrored", 2);
    Replicated<torch::nn::Sequential> net(strategy, test::small_cnn);
    Optimizer optimizer = make_optimizer(net, How::fused);
    module = net.modules().module(1);
    before = module->parameters()[0].sum().item<double>();
  }
  EXPECT_EQ(module->parameters()[0].sum().item<double>(), before);
}

// ---- batch norms that are frozen ----

struct Norms : torch::nn::Module {
  Norms() {
    first = register_module("first", torch::nn::BatchNorm1d(2));
    second = register_module("second", torch::nn::BatchNorm1d(2));
    bare = register_module("bare",
                           torch::nn::BatchNorm1d(torch::nn::BatchNormOptions(2).affine(false)));
  }
  at::Tensor forward(const at::Tensor& x) { return bare(second(first(x))); }
  void freeze(bool on) {
    for (auto& parameter : first->parameters()) parameter.set_requires_grad(!on);
  }
  torch::nn::BatchNorm1d first{nullptr}, second{nullptr}, bare{nullptr};
};

// y of all replicas, one after the other.
at::Tensor run_once(Strategy& strategy, Replicated<Norms>& net) {
  const at::Tensor x = torch::arange(8, at::kFloat).view({4, 2});
  return strategy.gather(strategy.run(
      [&](ReplicaContext& replica) { return net.local(replica)->forward(x).detach(); }));
}

int64_t batches_of(const torch::nn::BatchNorm1d& norm) {
  return norm->num_batches_tracked.item<int64_t>();
}

TEST(FrozenNorm, NormalisesByItsRunningStatisticsAndLeavesThem) {
  for (const char* kind : {"one_device", "mirrored"}) {
    Strategy strategy = strategy_of(kind, 2);
    Replicated<Norms> net(strategy, [] {
      auto made = std::make_shared<Norms>();
      made->freeze(true);
      return made;
    });
    run_once(strategy, net);
    for (int local = 0; local < 2; ++local) {
      const auto& norms = dynamic_cast<Norms&>(*net.modules().module(local));
      EXPECT_TRUE(at::equal(norms.first->running_mean, torch::zeros({2})));
      EXPECT_TRUE(at::equal(norms.first->running_var, torch::ones({2})));
      EXPECT_EQ(batches_of(norms.first), 0);
      EXPECT_EQ(batches_of(norms.second), 1) << "trained";
      EXPECT_EQ(batches_of(norms.bare), 1) << "nothing of it can be frozen";
    }
  }
}

TEST(FrozenNorm, IsTheInferenceOfTheLayer) {
  Strategy strategy = strategy_of("mirrored", 2);
  Replicated<torch::nn::BatchNorm1d> net(strategy, [] {
    torch::nn::BatchNorm1d norm(2);
    for (auto& parameter : norm->parameters()) parameter.set_requires_grad(false);
    norm->running_mean.fill_(3);
    return norm;
  });
  const auto x = torch::arange(8, at::kFloat).view({4, 2});
  const auto each = strategy.run([&](ReplicaContext& replica) { return net.local(replica)(x); });
  EXPECT_TRUE(at::allclose(each.local(1), (x - 3) / std::sqrt(1 + 1e-5)));
}

TEST(FrozenNorm, TrainsAgainOnceItIsThawed) {
  Strategy strategy = strategy_of("mirrored", 2);
  Replicated<Norms> net(strategy, [] { return std::make_shared<Norms>(); });
  const auto each = [&](const auto& act) {
    for (int local = 0; local < 2; ++local) act(dynamic_cast<Norms&>(*net.modules().module(local)));
  };
  const auto batches = [&] {
    run_once(strategy, net);
    return batches_of(dynamic_cast<Norms&>(*net.modules().module(1)).first);
  };
  EXPECT_EQ(batches(), 1);
  each([](Norms& norms) { norms.freeze(true); });
  EXPECT_EQ(batches(), 1);
  net.modules().train();
  EXPECT_EQ(batches(), 1);
  each([](Norms& norms) { norms.freeze(false); });
  EXPECT_EQ(batches(), 2);
  net.modules().train(false);
  EXPECT_EQ(batches(), 2) << "evaluation";
  net.modules().train();
  each([](Norms& norms) { norms.first->eval(); });  // by the user, who has the last word
  EXPECT_EQ(batches(), 2);
}

TEST(FrozenNorm, PutIntoTrainingInsideRunIsAWarning) {
  Strategy strategy = strategy_of("mirrored", 2);
  Replicated<Norms> net(strategy, [] {
    auto made = std::make_shared<Norms>();
    made->freeze(true);
    return made;
  });
  ::testing::internal::CaptureStderr();
  strategy.run([&](ReplicaContext& replica) { net.local(replica)->train(); });
  EXPECT_THAT(::testing::internal::GetCapturedStderr(),
              ::testing::HasSubstr("batch norm \"first\" is frozen"));
}

}  // namespace
}  // namespace tutti
