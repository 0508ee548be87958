// Strategies on devices: where replicas are placed, updates by way of the CPU, what replicas draw,
// exchange and bring together there, and states that go from devices to CPUs and back.
#include <ATen/Context.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>
#include <string>
#include <vector>

#include "tutti/exported/from_export.h"
#include "tutti/exported/module.h"
#include "tutti/nn/collectives.h"
#include "tutti/nn/dropout.h"
#include "tutti/nn/sample_context.h"
#include "tutti/nn/sync_batch_norm.h"
#include "tutti/strategy/detail/own_random_numbers.h"

#include "tests/support/device_job.h"
#include "tests/support/fake_cuda/fake_cuda_test.h"
#include "tests/support/message_of.h"

namespace tutti::test {
namespace {

std::vector<at::Tensor> on_cpu(const PerReplica<at::Tensor>& values) {
  std::vector<at::Tensor> copies;
  for (const at::Tensor& value : values.values()) copies.push_back(value.cpu());
  return copies;
}

using ::testing::AllOf;
using ::testing::HasSubstr;

class StrategyOnDevices : public FakeCudaTest {
 protected:
  void SetUp() override {
    FakeCudaTest::SetUp();
    if (!IsSkipped()) fake_cuda::set_devices(3);
  }
};

std::vector<std::string> places_of(const StrategyOptions& options) {
  Strategy strategy(options);
  return strategy.run([](ReplicaContext& replica) { return replica.device().str(); }).values();
}

TEST_F(StrategyOnDevices, ReplicasAreWhereTheyWereSentTo) {
  using Places = std::vector<std::string>;
  const auto places = [](const char* device, int replicas = 0, const char* kind = "mirrored") {
    return places_of({.kind = kind, .replicas = replicas, .device = device});
  };
  EXPECT_EQ(places("cuda"), (Places{"cuda:0", "cuda:1", "cuda:2"}));
  EXPECT_EQ(places("auto", 2), (Places{"cuda:0", "cuda:1"}));
  EXPECT_EQ(places("cuda:2,0"), (Places{"cuda:2", "cuda:0"}));
  EXPECT_EQ(places("cuda:1x2"), (Places{"cuda:1", "cuda:1"}));
  EXPECT_EQ(places("cpu,cuda:0"), (Places{"cpu", "cuda:0"}));
  EXPECT_EQ(places("cuda:1", 3, "one_device"), (Places{"cuda:1", "cuda:1", "cuda:1"}));
  EXPECT_EQ(places("cuda:0,1", 0, "central_storage"), (Places{"cuda:0", "cuda:1"}));
}

TEST_F(StrategyOnDevices, WrongDevicesAreSaidBeforeAnythingStarts) {
  const auto words = [](const char* device, int replicas = 0, const char* kind = "mirrored") {
    return message_of<UsageError>(
        [&] { Strategy({.kind = kind, .replicas = replicas, .device = device}); });
  };
  EXPECT_THAT(words("cuda:0,7"), HasSubstr("there is no device 7; visible: 0 to 2"));
  EXPECT_THAT(words("cuda:0,1", 4), HasSubstr("write cuda:0x2,1x2"));
  EXPECT_THAT(words("cuda:0,0"), HasSubstr("twice"));
  EXPECT_THAT(words("mps"), HasSubstr("mps"));
  EXPECT_THAT(words("cuda:0,1", 0, "one_device"), HasSubstr("one_device"));
  EXPECT_THAT(message_of<UsageError>([] {
                Strategy({.kind = "mirrored", .device = "cuda:0", .memory_limit_mib = 1 << 20});
              }),
              HasSubstr("more than it has"));
}

// The CPU's rules on gradients that, on the fake, have the CPU's bits.
TEST_F(StrategyOnDevices, WhatNoDeviceUpdatesIsUpdatedByTheCpu) {
  const optim::Recipe adam = optim::adam({.learning_rate = 0.01});
  const optim::Recipe lamb = optim::lamb({.learning_rate = 0.01});
  const std::vector<DeviceJob> jobs{
      {.device = "cpu,cuda:0", .recipe = adam, .unused = true},
      {.device = "cuda:0,1", .recipe = lamb},
      {.device = "cuda:0x2", .recipe = lamb},
      {.kind = "central_storage", .device = "cuda:0,1", .recipe = adam},
      {.kind = "one_device", .replicas = 3, .device = "cuda:1", .recipe = lamb}};
  for (const DeviceJob& job : jobs) {
    const at::Tensor cpu = weights_of({.kind = "one_device",
                                       .replicas = job.replicas,
                                       .device = "cpu",
                                       .recipe = job.recipe,
                                       .unused = job.unused})[0];
    in_all_orders(8, [&] { EXPECT_TRUE(all_equal(weights_of(job), cpu)) << job.device; });
  }
}

TEST_F(StrategyOnDevices, TorchOptimizersToo) {
  const auto train = [](const std::string& device) {
    Strategy strategy(device_options({.device = device}));
    Replicated<torch::nn::Sequential> net(strategy, small_net);
    Optimizer optimizer(net, [](std::vector<at::Tensor> parameters) {
      return std::make_unique<torch::optim::RMSprop>(parameters, 0.01);
    });
    const auto x = device_data(4);
    for (int step = 0; step < 4; ++step)
      strategy.run([&](ReplicaContext& replica) {
        device_step(replica, net.local(replica), optimizer, x[step]);
      });
    return flat_weights(net);
  };
  const at::Tensor cpu = train("cpu")[0];
  in_all_orders(4, [&] { EXPECT_TRUE(all_equal(train("cuda:0,1"), cpu)); });
}

TEST_F(StrategyOnDevices, MergeSeesWhatAllHaveQueued) {
  in_all_orders(20, [&] {
    Strategy strategy(device_options({.device = "cuda:0,1"}));
    const auto sums = strategy.run([&](ReplicaContext& replica) {
      auto value = torch::full({64}, replica.rank() + 1.0).to(replica.device());
      for (int i = 0; i < 5; ++i) value = value * 2;
      const auto sum = strategy.merge(
          replica,
          [](Strategy&, const PerReplica<at::Tensor>& values) {
            return values.local(0) + values.local(1).to(values.local(0).device());
          },
          value);
      return (sum.to(replica.device()) + 1).sum();
    });
    EXPECT_EQ(strategy.reduce(ReduceOp::sum, sums).item<double>(), 2 * 64 * (32 + 64 + 1));
  });
}

// As who catches an error and saves the weights.
TEST_F(StrategyOnDevices, AfterAnErrorTheCallerSeesWhatWasQueued) {
  for (const char* kind : {"one_device", "mirrored"})
    in_all_orders(20, [&] {
      Strategy strategy(device_options({.kind = kind, .replicas = 1, .device = "cuda:0"}));
      at::Tensor value;
      const auto fail = [&](ReplicaContext& replica) {
        value = torch::ones({64}).to(replica.device());
        for (int i = 0; i < 5; ++i) value = value * 2;
        throw Error("on purpose");
      };
      EXPECT_EQ(message_of<Error>([&] { strategy.run(fail); }), "on purpose");
      EXPECT_EQ((value + 1).sum().item<double>(), 64 * (32 + 1));
    });
}

TEST_F(StrategyOnDevices, EachReplicaDrawsItsOwnNumbers) {
  const auto draw = [] {
    Strategy strategy(device_options({.device = "cuda:0x2"}));
    return on_cpu(strategy.run([](ReplicaContext& replica) {
      const auto options = at::TensorOptions(replica.device());
      return torch::rand({32}, options) + torch::randn({32}, options);
    }));
  };
  fake_cuda::set_order(fake_cuda::Order::eager);
  const auto first = draw();
  EXPECT_FALSE(torch::equal(first[0], first[1]));
  in_all_orders(8, [&] {
    const auto again = draw();
    EXPECT_TRUE(torch::equal(again[0], first[0]) && torch::equal(again[1], first[1]));
  });
}

TEST_F(StrategyOnDevices, NumbersOfAKeyAreTheSameWhateverWasDrawnBefore) {
  const at::Device device(at::kCUDA, 1);
  const auto drawn = [&](uint64_t key) {
    const detail::NumbersOfKey numbers(key, device);
    const at::Tensor ones = torch::ones({64}, device);
    return (torch::dropout(ones, 0.5, true) + torch::rand({64}, at::TensorOptions(device))).cpu();
  };
  const auto state = [&] { return at::globalContext().defaultGenerator(device).get_state(); };
  const at::Tensor expected = drawn(5);
  EXPECT_FALSE(torch::equal(drawn(6), expected));
  in_all_orders(8, [&] {
    torch::rand({3}, at::TensorOptions(device));
    const at::Tensor before = state();
    EXPECT_TRUE(torch::equal(drawn(5), expected));
    EXPECT_TRUE(torch::equal(state(), before));
  });
}

// On one device as threads, on two, and in turn.
TEST_F(StrategyOnDevices, NetworksOfPythonDrawByTheirPlace) {
  const auto drawn = [](const std::string& kind, const std::string& device) {
    Strategy strategy(device_options({.kind = kind, .replicas = 2, .device = device}));
    const Replicated<ExportedModule> nets(strategy, from_export("tests/tables/exported/drawn.pt2"));
    return on_cpu(strategy.run([&](ReplicaContext& replica) {
      const nn::SampleContext place({.seed = 3, .step = 5, .first_row = 4 * replica.rank()});
      const at::Tensor x = torch::ones({4, 3}).to(replica.device());
      return torch::stack(nets.local(replica)->forward_all(x)).detach();
    }));
  };
  const auto expected = drawn("mirrored", "cuda:0,1");
  EXPECT_FALSE(torch::equal(expected[0], expected[1]));
  in_all_orders(8, [&] {
    for (const auto& one : {drawn("mirrored", "cuda:2x2"), drawn("one_device", "cuda:0")})
      EXPECT_TRUE(torch::equal(one[0], expected[0]) && torch::equal(one[1], expected[1]));
  });
}

TEST_F(StrategyOnDevices, DropoutHasTheMaskOfTheCpu) {
  const auto dropped = [](at::Device device) {
    const nn::SampleContext place({.seed = 3, .step = 5, .first_row = 2});
    nn::DropoutImpl dropout({.probability = 0.4});
    return dropout.forward(torch::ones({6, 10}).to(device)).cpu();
  };
  const at::Tensor cpu = dropped(at::kCPU);
  in_all_orders(8, [&] { EXPECT_TRUE(torch::equal(dropped(at::Device(at::kCUDA, 1)), cpu)); });
}

/// Per replica: output and gradient of a net with a synchronised batch norm and an all-reduce.
std::vector<at::Tensor> synchronised(const std::string& device, bool norm) {
  Strategy strategy(device_options({.device = device}));
  Replicated<torch::nn::Sequential> net(strategy, [&] {
    torch::nn::Sequential made(torch::nn::Linear(8, 6));
    if (norm) made->push_back(nn::SyncBatchNormImpl(torch::nn::BatchNormOptions(6)));
    return made;
  });
  return on_cpu(strategy.run([&](ReplicaContext& replica) {
    const auto x = torch::sin(torch::arange(24, at::kFloat) + replica.rank()).view({3, 8});
    const auto y = net.local(replica)->forward(x.to(replica.device()));
    const auto all = nn::all_reduce(replica, y);
    (all * all * y).sum().backward();
    const auto gradient = net.local(replica)->parameters()[0].grad();
    return torch::cat({all.detach().flatten(), gradient.flatten()});
  }));
}

TEST_F(StrategyOnDevices, ReplicasExchangeByTheCpu) {
  for (const bool norm : {false, true}) {
    const auto cpu = synchronised("cpu", norm);
    in_all_orders(4, [&] {
      const auto there = synchronised("cuda:0,1", norm);
      for (size_t r = 0; r < 2; ++r)
        EXPECT_TRUE(torch::allclose(there[r], cpu[r], 1e-4, 1e-5)) << norm;
    });
  }
  const auto shared = synchronised("cuda:0x2", false), cpu = synchronised("cpu", false);
  EXPECT_TRUE(torch::allclose(shared[1], cpu[1], 1e-4, 1e-5));
  EXPECT_THAT(message_of<UsageError>([] { synchronised("cuda:0x2", true); }),
              HasSubstr("another replica shares its device"));
}

TEST_F(StrategyOnDevices, AStuckDeviceIsNamedByWhoeverWaitsForIt) {
  StrategyOptions options = device_options({.device = "cuda:0,1"});
  options.time_limit = Millis(300);
  Strategy strategy(options);
  Replicated<torch::nn::Sequential> net(strategy, small_net);
  Optimizer optimizer(net, optim::adam());
  const auto x = device_data(1)[0].pin_memory();
  fake_cuda::stick(1, 100);
  strategy.run([&](ReplicaContext& replica) {
    for (int step = 0; step < 20; ++step) {
      const auto part = x.to(replica.device(), /*non_blocking=*/true);
      optimizer.minimize(replica, net.local(replica)->forward(part).square().sum());
    }
  });
  const UpdaterState state = optimizer.updater().state();
  EXPECT_THAT(message_of<Timeout>([&] { optimizer.updater().restore(state, {}); }),
              AllOf(HasSubstr("replica 1 (cuda:1) hangs"), HasSubstr("waited 150 ms")));
  fake_cuda::unstick(1);
}

TEST_F(StrategyOnDevices, AStuckDeviceEndsAStepThatGoesByTheCpu) {
  StrategyOptions options = device_options({.device = "cpu,cuda:1"});
  options.time_limit = Millis(300);
  Strategy strategy(options);
  Replicated<torch::nn::Sequential> net(strategy, small_net);
  Optimizer optimizer(net, optim::adam());
  fake_cuda::stick(1);
  const auto step = [&] {
    strategy.run([&](ReplicaContext& replica) {
      const auto x = torch::ones({2, 64}, at::TensorOptions(replica.device()));
      optimizer.minimize(replica, net.local(replica)->forward(x).square().sum());
    });
  };
  EXPECT_THAT(message_of<Error>(step), HasSubstr("replica 1 (cuda:1) hangs"));
  fake_cuda::unstick(1);
}

// One error, in half of the time limit, wherever a replica brings values to the host.
TEST_F(StrategyOnDevices, AStuckDeviceEndsAnExchangeByTheCpu) {
  using Use = std::function<void(Strategy&, ReplicaContext&, const at::Tensor&)>;
  const auto words = [](const Use& use) {
    StrategyOptions options = device_options({.device = "cuda:0,1"});
    options.time_limit = Millis(2000);
    Strategy strategy(options);
    fake_cuda::stick(1);
    const std::string message = message_of<Timeout>([&] {
      strategy.run([&](ReplicaContext& replica) {
        use(strategy, replica, torch::ones({3, 6}, at::TensorOptions(replica.device())));
      });
    });
    fake_cuda::unstick(1);
    return message;
  };
  const auto says = [](const char* what) {
    return AllOf(HasSubstr("replica 1 (cuda:1) hangs"), HasSubstr(what),
                 HasSubstr("waited 1000 ms"));
  };
  EXPECT_THAT(words([](Strategy&, ReplicaContext& replica, const at::Tensor& x) {
                nn::all_reduce(replica, x);
              }),
              says("the input of all_reduce on replica 1"));
  EXPECT_THAT(words([](Strategy&, ReplicaContext& replica, const at::Tensor& x) {
                nn::SyncBatchNormImpl norm(torch::nn::BatchNormOptions(6));
                norm.to(replica.device(), /*non_blocking=*/true);
                norm.forward(x);
              }),
              says("statistics of SyncBatchNorm on replica 1"));
  EXPECT_THAT(words([](Strategy& strategy, ReplicaContext& replica, const at::Tensor& x) {
                strategy.merge(
                    replica,
                    [](Strategy& all, const PerReplica<at::Tensor>& values) {
                      return all.gather(values, 0);
                    },
                    x);
              }),
              says("what gather() brings together"));
}

// In backward the host waits on autograd's thread of the device.
TEST_F(StrategyOnDevices, AStuckDeviceEndsTheBackwardPassOfAnExchange) {
  StrategyOptions options = device_options({.device = "cuda:0,1"});
  options.time_limit = Millis(2000);
  Strategy strategy(options);
  const auto words = message_of<Timeout>([&] {
    strategy.run([&](ReplicaContext& replica) {
      const auto x = torch::ones({3}, at::TensorOptions(replica.device())).set_requires_grad(true);
      const auto y = nn::all_reduce(replica, x);
      if (replica.rank() == 1) fake_cuda::stick(1);
      (y * y).sum().backward();
    });
  });
  fake_cuda::unstick(1);
  EXPECT_THAT(words, AllOf(HasSubstr("replica 1 (cuda:1) hangs"),
                           HasSubstr("the gradient of the output of all_reduce on replica 1")));
}

// What a step with `bad` leaves behind on devices: nothing of it, nor of those after it.
TEST_F(StrategyOnDevices, StepsAfterABadOneAreLeftOut) {
  for (const std::string device : {"cuda:0,1", "cuda:0x2", "cuda:1"}) {
    const int replicas = device == "cuda:1" ? 1 : 2;
    const auto train = [&](int steps, int bad_step) {
      Strategy strategy(device_options({.replicas = replicas, .device = device}));
      Replicated<torch::nn::Sequential> net(strategy, small_net);
      Optimizer optimizer(net, optim::adam({.learning_rate = 0.01}));
      const auto x = device_data(steps);
      for (int step = 0; step < steps; ++step)
        strategy.run([&](ReplicaContext& replica) {
          const bool bad = step == bad_step && replica.rank() == replicas - 1;
          optimizer.leave_out_if(replica, torch::tensor(bad).to(replica.device()));
          device_step(replica, net.local(replica), optimizer, x[step]);
        });
      EXPECT_EQ(optimizer.forget_left_out(), bad_step < 0 ? 0 : steps - bad_step);
      EXPECT_EQ(optimizer.version(), bad_step < 0 ? steps : bad_step);
      EXPECT_EQ(optimizer.forget_left_out(), 0);
      strategy.run([&](ReplicaContext& replica) {  // goes on as if they had not been
        device_step(replica, net.local(replica), optimizer, x[0]);
      });
      const auto scalars = optimizer.updater().state().tensors.back().second;
      return std::pair(flat_weights(net), scalars.clone());
    };
    fake_cuda::set_order(fake_cuda::Order::eager);
    const auto [expected, scalars] = train(3, -1);
    in_all_orders(8, [&] {
      const auto [weights, counts] = train(6, 3);
      EXPECT_TRUE(all_equal(weights, expected[0])) << device;
      EXPECT_TRUE(torch::equal(counts, scalars)) << device;
    });
  }
}

struct Saved {
  UpdaterState state;
  NamedTensors parameters;
};

/// Trains `steps` steps from `from`, where there is one, and saves.
Saved go_on(const DeviceJob& job, const Saved* from, int steps) {
  Strategy strategy(device_options(job));
  Replicated<torch::nn::Sequential> net(strategy, small_net);
  Optimizer optimizer(net, job.recipe);
  if (from != nullptr) optimizer.updater().restore(from->state, from->parameters);
  const auto x = device_data(8);
  for (int i = 0; i < steps; ++i)
    strategy.run([&](ReplicaContext& replica) {
      device_step(replica, net.local(replica), optimizer, x[optimizer.version()]);
    });
  Saved saved{optimizer.updater().state(), {}};
  for (auto& [name, tensor] : saved.state.tensors) tensor = tensor.cpu().clone();
  for (const auto& [name, parameter] : unique_parameters(*net.modules().module(0)))
    saved.parameters.emplace_back(name, parameter.detach().cpu().clone());
  return saved;
}

double difference(const Saved& a, const Saved& b) {
  double most = 0;
  const auto compare = [&](const NamedTensors& one, const NamedTensors& other) {
    EXPECT_EQ(one.size(), other.size());
    for (size_t i = 0; i < one.size(); ++i) {
      EXPECT_EQ(one[i].first, other[i].first);
      most = std::max(most, (one[i].second - other[i].second).abs().max().item<double>());
    }
  };
  compare(a.parameters, b.parameters);
  compare(a.state.tensors, b.state.tensors);
  return most;
}

TEST_F(StrategyOnDevices, StatesGoFromDevicesToCpusAndBack) {
  const DeviceJob cpu{.device = "cpu"}, one{.replicas = 1, .device = "cuda:0"},
      two{.device = "cuda:0,1"}, shared{.replicas = 3, .device = "cuda:2x3"};
  for (const auto& [first, then] : {std::pair(cpu, two), std::pair(two, cpu), std::pair(two, one),
                                    std::pair(one, shared), std::pair(shared, cpu)}) {
    const Saved saved = go_on(first, nullptr, 3);
    EXPECT_EQ(difference(go_on(then, &saved, 0), saved), 0) << first.device << " " << then.device;
    // Going on elsewhere differs by the rounding of sums alone.
    EXPECT_LT(difference(go_on(then, &saved, 3), go_on(first, &saved, 3)), 1e-4);
  }
  in_all_orders(4, [&] {
    const Saved half = go_on(two, nullptr, 3);
    EXPECT_EQ(difference(go_on(two, &half, 3), go_on(two, nullptr, 6)), 0);
  });
}

TEST_F(StrategyOnDevices, ReplicasComeAndGo) {
  Strategy strategy(device_options({.replicas = 1, .device = "cuda"}));
  Replicated<torch::nn::Sequential> net(strategy, small_net);
  Optimizer optimizer(net, optim::adam({.learning_rate = 0.01}));
  const auto x = device_data(6);
  for (int step = 0; step < 6; ++step) {
    if (step == 2) strategy.resize(3);
    if (step == 4) strategy.resize(2);
    strategy.run([&](ReplicaContext& replica) {
      device_step(replica, net.local(replica), optimizer, x[step]);
    });
  }
  const auto weights = flat_weights(net);
  EXPECT_EQ(weights.size(), 2);
  EXPECT_TRUE(all_equal(weights, weights[0]));
  EXPECT_EQ(optimizer.version(), 6);
  const Saved alone = go_on({.replicas = 1, .device = "cuda:0"}, nullptr, 6);
  std::vector<at::Tensor> flat;
  for (const auto& [name, tensor] : alone.parameters) flat.push_back(tensor.reshape({-1}));
  EXPECT_LT((torch::cat(flat) - weights[0]).abs().max().item<double>(), 1e-3);
}

}  // namespace
}  // namespace tutti::test
