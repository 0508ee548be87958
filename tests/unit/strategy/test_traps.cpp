// The design's traps that concern autograd and parameter storage, each once.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <atomic>

#include "tutti/base/error.h"
#include "tutti/strategy/modules/replicated.h"
#include "tutti/strategy/optimizer/loss_scaling.h"
#include "tutti/sync/tensors.h"

#include "tests/support/plain_training.h"

namespace tutti {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

Strategy mirrored(int replicas) {
  return Strategy({.kind = "mirrored", .replicas = replicas, .threads_per_replica = 1, .seed = 5});
}

// y = x w, with whatever else a test adds.
struct TwoParameters : torch::nn::Module {
  TwoParameters() {
    a = register_parameter("a", torch::ones({3}));
    b = register_parameter("b", torch::ones({3}));
  }
  at::Tensor a, b;
};

using Rule = optim::Rule;

struct Bench {
  explicit Bench(int replicas, const Rule& rule = optim::sgd({.learning_rate = 1.0}))
      : strategy(mirrored(replicas)),
        net(strategy, [] { return std::make_shared<TwoParameters>(); }),
        optimizer(net, rule) {}

  template <class Loss>
  void step(Loss loss) {
    strategy.run([&](ReplicaContext& replica) {
      optimizer.minimize(replica, loss(replica, *net.local(replica)));
    });
  }
  at::Tensor a() { return optimizer.updater().parameters(0)[0].detach().clone(); }
  at::Tensor b() { return optimizer.updater().parameters(0)[1].detach().clone(); }

  Strategy strategy;
  Replicated<TwoParameters> net;
  Optimizer optimizer;
};

TEST(Autograd, WriteBetweenForwardAndBackwardIsAnError) {
  Bench bench(2);
  std::vector<at::Tensor> old_loss(2);
  bench.strategy.run([&](ReplicaContext& replica) {
    auto& net = *bench.net.local(replica);
    old_loss[replica.rank()] = (net.a * net.b).sum();
    bench.optimizer.minimize(replica, net.a.sum());
  });
  for (auto& loss : old_loss)
    EXPECT_THAT([&] { loss.backward(); },
                ThrowsMessage<c10::Error>(HasSubstr("modified by an inplace")));
}

TEST(Autograd, GradientsOfTwoParametersMayShareOneBuffer) {
  Bench bench(2);
  bench.step([](ReplicaContext&, TwoParameters& net) { return (net.a + net.b).sum(); });
  EXPECT_TRUE(at::equal(bench.a(), torch::full({3}, -1.0f)));
  EXPECT_TRUE(at::equal(bench.b(), torch::full({3}, -1.0f)));
}

TEST(Autograd, NonContiguousGradientsAreReadRight) {
  struct Matrix : torch::nn::Module {
    Matrix() { w = register_parameter("w", torch::zeros({2, 3})); }
    at::Tensor w;
  };
  auto strategy = mirrored(2);
  Replicated<Matrix> net(strategy, [] { return std::make_shared<Matrix>(); });
  Optimizer optimizer(net, optim::sgd({.learning_rate = 1.0}));
  const at::Tensor factor = torch::arange(6, at::kFloat).view({3, 2});
  strategy.run([&](ReplicaContext& replica) {
    optimizer.minimize(replica, (net.local(replica)->w.t() * factor).sum());
  });
  EXPECT_TRUE(at::equal(optimizer.updater().parameters(0)[0].detach(), -2 * factor.t()));
}

TEST(Autograd, UnusedOnSomeCountsAsZeroUnusedOnAllIsSkipped) {
  // With momentum and weight decay a skipped parameter must not move at all.
  Bench bench(2, optim::sgd({.learning_rate = 1.0, .momentum = 0.9, .weight_decay = 0.5}));
  bench.step([](ReplicaContext& replica, TwoParameters& net) {
    return replica.rank() == 0 ? net.a.sum() : (2 * net.a).sum();
  });
  EXPECT_TRUE(at::equal(bench.a(), torch::full({3}, 1.0f - 3.5f)));
  EXPECT_TRUE(at::equal(bench.b(), torch::ones({3})));
  bench.step([](ReplicaContext& replica, TwoParameters& net) {
    return replica.rank() == 0 ? net.b.sum() : net.a.sum() * 0;
  });
  EXPECT_TRUE(at::equal(bench.b(), torch::full({3}, 1.0f - 1.5f)));
}

TEST(Autograd, StepCountIsPerParameter) {
  // Adam's first step is the learning rate, whatever the step of the others.
  Bench bench(2, optim::adam({.learning_rate = 0.125, .epsilon = 1e-30}));
  for (int i = 0; i < 3; ++i)
    bench.step([](ReplicaContext&, TwoParameters& net) { return net.a.sum(); });
  bench.step([](ReplicaContext&, TwoParameters& net) { return net.b.sum(); });
  EXPECT_TRUE(at::allclose(bench.b(), torch::full({3}, 1.0f - 0.125f), 1e-6, 0));
}

TEST(Autograd, ReplicaWhoseLossUsesNoParameterTakesPart) {
  Bench bench(2);
  bench.step([](ReplicaContext& replica, TwoParameters& net) {
    return replica.rank() == 0 ? net.a.sum() : torch::zeros({});
  });
  EXPECT_TRUE(at::equal(bench.a(), torch::zeros({3})));
}

TEST(Autograd, ALossWithoutAGraphIsRefused) {
  const auto refused = [](auto loss_of) {
    for (const bool accumulates : {false, true}) {
      Bench bench(2);
      EXPECT_THAT(
          [&] {
            bench.strategy.run([&](ReplicaContext& replica) {
              const at::Tensor loss = loss_of(*bench.net.local(replica));
              if (accumulates) return bench.optimizer.accumulate(replica, loss);
              bench.optimizer.minimize(replica, loss);
            });
          },
          ThrowsMessage<UsageError>(HasSubstr(fmt::format(
              "{}: the loss is 3 but has no graph", accumulates ? "accumulate" : "minimize"))));
      EXPECT_EQ(bench.optimizer.version(), 0);
    }
  };
  refused([](TwoParameters& net) { return net.a.sum().detach(); });
  refused([](TwoParameters& net) {
    const at::NoGradGuard no_grad;
    return net.a.sum();
  });
  refused([](TwoParameters& net) {
    net.b.set_requires_grad(false);
    return net.b.sum();
  });
}

TEST(Autograd, AbstainingReplicaAddsNothing) {
  Bench bench(3);
  bench.strategy.run([&](ReplicaContext& replica) {
    if (replica.rank() == 1) return bench.optimizer.abstain(replica);
    bench.optimizer.minimize(replica, bench.net.local(replica)->a.sum());
  });
  EXPECT_TRUE(at::equal(bench.a(), torch::full({3}, -1.0f)));
}

TEST(Autograd, SecondBackwardNamesTheParameter) {
  Bench bench(1);
  EXPECT_THAT(
      [&] {
        bench.step([](ReplicaContext&, TwoParameters& net) {
          net.b.sum().backward();
          return net.a.sum();
        });
      },
      ThrowsMessage<UsageError>(HasSubstr("\"b\"")));
}

TEST(Autograd, DoubleBackwardNamesTheParameter) {
  auto strategy = mirrored(1);
  Replicated<TwoParameters> net(strategy, [] { return std::make_shared<TwoParameters>(); });
  auto updater = make_shared_updater(strategy.world(), optim::sgd(),
                                     {unique_parameters(*net.modules().module(0))});
  const auto gradients =
      torch::autograd::grad({(net.modules().module(0)->parameters()[0].pow(2)).sum()},
                            {net.modules().module(0)->parameters()[0]}, {}, true, true);
  EXPECT_THAT([&] { updater->step(0, gradients, {}, Deadline(kDefaultTimeLimit)); },
              ThrowsMessage<UsageError>(AllOf(HasSubstr("\"a\""), HasSubstr("double backward"))));
}

TEST(Autograd, SparseGradientNamesTheParameter) {
  auto strategy = mirrored(1);
  Replicated<torch::nn::Embedding> net(strategy, [] {
    return torch::nn::Embedding(torch::nn::EmbeddingOptions(10, 4).sparse(true));
  });
  Optimizer optimizer(net, optim::sgd());
  EXPECT_THAT(
      [&] {
        strategy.run([&](ReplicaContext& replica) {
          optimizer.minimize(replica, net.local(replica)(torch::tensor({1, 2})).sum());
        });
      },
      ThrowsMessage<UsageError>(AllOf(HasSubstr("\"weight\""), HasSubstr("sparse"))));
}

TEST(Autograd, HooksOfTheUserStay) {
  Bench bench(2);
  std::atomic<int> calls{0};
  for (int local = 0; local < 2; ++local)
    bench.optimizer.updater().parameters(local)[0].register_hook([&](at::Tensor gradient) {
      ++calls;
      return gradient * 2;
    });
  bench.step([](ReplicaContext&, TwoParameters& net) { return net.a.sum(); });
  EXPECT_EQ(calls, 2);
  EXPECT_TRUE(at::equal(bench.a(), torch::full({3}, 1.0f - 4.0f)));
}

TEST(Parameters, TiedOnesAreTrainedOnce) {
  struct TiedNet : torch::nn::Module {
    TiedNet() {
      auto shared = torch::ones({2});
      left = register_parameter("left", shared);
      right = register_parameter("right", left);
    }
    at::Tensor left, right;
  };
  auto strategy = mirrored(2);
  Replicated<TiedNet> net(strategy, [] { return std::make_shared<TiedNet>(); });
  Optimizer optimizer(net, optim::sgd({.learning_rate = 1.0}));
  ASSERT_EQ(optimizer.updater().layout().slots.size(), 1u);
  EXPECT_EQ(optimizer.updater().layout().slots[0].name, "left");
  strategy.run([&](ReplicaContext& replica) {
    auto& module = *net.local(replica);
    optimizer.minimize(replica, (module.left * module.right).sum());
  });
  const auto module = net.modules().module(1);
  EXPECT_TRUE(at::equal(module->parameters()[0].detach(), torch::full({2}, -3.0f)));
  EXPECT_TRUE(at::equal(module->parameters()[1].detach(), torch::full({2}, -3.0f)));
}

TEST(Parameters, FrozenOnesStayAndSeveralDtypesTrain) {
  struct Mixed : torch::nn::Module {
    Mixed() {
      single = register_parameter("single", torch::ones({1500}));
      wide = register_parameter("wide", torch::ones({1500}, at::kDouble));
      frozen = register_parameter("frozen", torch::ones({5}), false);
    }
    at::Tensor single, wide, frozen;
  };
  for (bool fused : {true, false}) {
    auto strategy = mirrored(3);
    Replicated<Mixed> net(strategy, [] { return std::make_shared<Mixed>(); });
    const auto rule = optim::sgd({.learning_rate = 0.25});
    Optimizer optimizer = fused ? Optimizer(net, rule) : Optimizer(net, rule, ReplicatedOptions{});
    for (int step = 0; step < 2; ++step)
      strategy.run([&](ReplicaContext& replica) {
        auto& module = *net.local(replica);
        optimizer.minimize(
            replica, (module.single.to(at::kDouble) * 2 + module.wide * module.frozen[0]).sum());
      });
    const auto& parameters = optimizer.updater().parameters(2);
    EXPECT_TRUE(at::equal(parameters[0].detach(), torch::full({1500}, 1.0f - 2 * 1.5f)));
    EXPECT_TRUE(
        at::equal(parameters[1].detach(), torch::full({1500}, 1.0 - 2 * 0.75, at::kDouble)));
    EXPECT_TRUE(at::equal(parameters[2].detach(), torch::ones({5})));
  }
}

TEST(Parameters, StartOn64ByteLinesInOneStorage) {
  Bench bench(2);
  for (int parameter = 0; parameter < 2; ++parameter) {
    const auto* first = bench.optimizer.updater().parameters(0)[parameter].data_ptr();
    EXPECT_EQ(reinterpret_cast<uintptr_t>(first) % 64, 0u);
    EXPECT_EQ(first, bench.optimizer.updater().parameters(1)[parameter].data_ptr());
  }
}

TEST(Parameters, HalfPrecisionUnderTheFusedStepIsNamed) {
  struct Half : torch::nn::Module {
    Half() { w = register_parameter("w", torch::ones({4}, at::kBFloat16)); }
    at::Tensor w;
  };
  auto strategy = mirrored(2);
  Replicated<Half> net(strategy, [] { return std::make_shared<Half>(); });
  EXPECT_THAT([&] { Optimizer(net, optim::adam()); },
              ThrowsMessage<UsageError>(AllOf(HasSubstr("\"w\""), HasSubstr("bfloat16"))));
  Optimizer optimizer(net, [](std::vector<at::Tensor> parameters) {
    return std::make_unique<torch::optim::SGD>(parameters, 0.5);
  });
  strategy.run(
      [&](ReplicaContext& replica) { optimizer.minimize(replica, net.local(replica)->w.sum()); });
  EXPECT_TRUE(
      at::equal(optimizer.updater().parameters(1)[0].detach(), torch::zeros({4}, at::kBFloat16)));
}

TEST(Factories, RunFromTheSameSeedAndMustAgree) {
  auto strategy = mirrored(3);
  torch::manual_seed(99);
  const auto expected_next = torch::rand({1});
  torch::manual_seed(99);
  Replicated<torch::nn::Linear> net(strategy, [] { return torch::nn::Linear(4, 4); });
  EXPECT_TRUE(at::equal(torch::rand({1}), expected_next))
      << "the default generator must be put back";
  EXPECT_TRUE(at::equal(net.modules().module(0)->parameters()[0],
                        net.modules().module(2)->parameters()[0]));
  int made = 0;
  EXPECT_THAT(
      [&] {
        Replicated<torch::nn::Linear>(strategy,
                                      [&] { return torch::nn::Linear(4, 4 + made++ / 2); });
      },
      ThrowsMessage<Mismatch>(AllOf(HasSubstr("rank 2"), HasSubstr("\"weight\""))));
}

TEST(Factories, ThatGiveOneModuleTwiceAreNamed) {
  for (const auto* kind : {"one_device", "mirrored"}) {
    const Strategy strategy({.kind = kind, .replicas = 2, .threads_per_replica = 1});
    torch::nn::Linear shared(4, 3);
    EXPECT_THAT([&] { Replicated<torch::nn::Linear>(strategy, [&] { return shared; }); },
                ThrowsMessage<UsageError>(
                    AllOf(HasSubstr("the factory gave the same module twice"),
                          HasSubstr("parameter \"weight\" of replica 1 is replica 0's"))));
    const auto around = [&] { return torch::nn::Sequential(shared, torch::nn::Linear(3, 3)); };
    EXPECT_THAT([&] { Replicated<torch::nn::Sequential>(strategy, around); },
                ThrowsMessage<UsageError>(HasSubstr("parameter \"0.weight\"")));
    for (auto& parameter : shared->parameters()) parameter.set_requires_grad(false);
    Replicated<torch::nn::Sequential> frozen(strategy, around);  // nobody writes them
    EXPECT_EQ(frozen.modules().size(), 2);
  }
}

struct Unregistered : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x) { return layer(x); }
  torch::nn::Linear layer{torch::nn::LinearOptions(4, 3)};
};

TEST(Parameters, OfALayerThatWasNotRegisteredAreMissed) {
  Replicated<Unregistered> net(mirrored(2), [] { return Unregistered(); });
  EXPECT_THAT([&] { Optimizer(net, optim::sgd()); },
              ThrowsMessage<UsageError>(AllOf(HasSubstr("the model has no parameters to train"),
                                              HasSubstr("was register_module forgotten?"))));
}

TEST(Reduce, MeanOverAnAxisCountsExamples) {
  for (const char* kind : {"one_device", "mirrored"}) {
    Strategy strategy({.kind = kind, .replicas = 3, .threads_per_replica = 1});
    const auto values = strategy.run([](ReplicaContext& replica) {  // sizes 0, 1, 2: values 0, 1, 2
      return torch::full({replica.rank()}, static_cast<double>(replica.rank()), at::kDouble);
    });
    EXPECT_DOUBLE_EQ(strategy.reduce(ReduceOp::mean, values, 0).item<double>(), 5.0 / 3);
    EXPECT_DOUBLE_EQ(strategy.reduce(ReduceOp::sum, values, 0).item<double>(), 5.0);
  }
}

TEST(Options, WrongOnesNameTheValidOnes) {
  EXPECT_THAT([] { Strategy({.kind = "mirorred"}); },
              ThrowsMessage<UsageError>(HasSubstr("did you mean \"mirrored\"")));
  EXPECT_THAT([] { Strategy({.kind = "tpu", .plugin = "xla"}); },
              ThrowsMessage<UsageError>(HasSubstr("or a plugin (cpu, tpu")));
  EXPECT_THAT([] { Strategy({.kind = "mirrored", .replicas = -1}); },
              ThrowsMessage<UsageError>(HasSubstr("replicas is -1")));
  EXPECT_THAT([] { Strategy({.kind = "multi_worker", .replicas = 2}); },
              ThrowsMessage<UsageError>(HasSubstr("tutti run -n 2")));
  EXPECT_THAT([] { Strategy({.kind = "one_device", .replicas = 4, .reduction_shape = "2x3"}); },
              ThrowsMessage<UsageError>(HasSubstr("6 replicas")));
  EXPECT_THAT([] { Strategy({.kind = "mirrored", .table = {}}); },
              ThrowsMessage<UsageError>(HasSubstr("sends nothing between hosts")));
  EXPECT_THAT([] { average_loss(torch::ones({2}), 0); },
              ThrowsMessage<UsageError>(HasSubstr("0 samples")));
}

}  // namespace
}  // namespace tutti
