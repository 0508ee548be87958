// Thread replicas on devices, each step one update by all of them: the weights of one device that
// takes the parts in turn, bit for bit, in whatever order the devices work; and of each wait
// between queues that it is needed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <functional>
#include <string>
#include <tuple>
#include <vector>

#include "tutti/strategy/modules/replicated.h"

#include "tests/support/device_job.h"
#include "tests/support/fake_cuda/fake_cuda_test.h"
#include "tests/support/message_of.h"

namespace tutti::test {
namespace {

constexpr int kSeeds = 20;

class FusedStepOnDevices : public FakeCudaTest {
 protected:
  void SetUp() override {
    FakeCudaTest::SetUp();
    if (!IsSkipped()) fake_cuda::set_devices(3);
  }

  static at::Tensor oracle(DeviceJob job) {
    fake_cuda::set_order(fake_cuda::Order::eager);
    job.kind = "one_device";
    job.device = "cuda:0";
    return weights_of(job)[0];
  }

  /// In which orders the weights are not the oracle's: "lazy, seed 3".
  static std::string wrong_orders(const DeviceJob& job, int seeds = kSeeds) {
    const at::Tensor expected = oracle(job);
    EXPECT_TRUE(std::isfinite(expected.sum().item<double>()));
    std::string wrong;
    const auto run = [&](fake_cuda::Order order, uint64_t seed, const std::string& name) {
      fake_cuda::set_order(order, seed);
      if (!all_equal(weights_of(job), expected)) wrong += (wrong.empty() ? "" : ", ") + name;
    };
    run(fake_cuda::Order::eager, 0, "eager");
    run(fake_cuda::Order::lazy, 0, "lazy");
    for (int seed = 0; seed < seeds; ++seed)
      run(fake_cuda::Order::random, static_cast<uint64_t>(seed), fmt::format("seed {}", seed));
    return wrong;
  }
};

TEST_F(FusedStepOnDevices, ALossOfAnotherModuleIsRefused) {
  for (const auto& [replicas, device, kind] : {std::tuple{1, "cuda:0", "mirrored"},
                                               {2, "cuda:0,1", "mirrored"},
                                               {2, "cuda:0", "one_device"}}) {
    Strategy strategy(device_options({.kind = kind, .replicas = replicas, .device = device}));
    Replicated<torch::nn::Sequential> net(strategy, small_net);
    Optimizer optimizer(net, optim::adam({.learning_rate = 0.01}));
    const auto x = device_data(1);
    const auto step = [&](bool own) {
      strategy.run([&](ReplicaContext& replica) {
        auto before = small_net();
        before->to(replica.device());
        device_step(replica, own ? net.local(replica) : before, optimizer, x[0]);
      });
    };
    EXPECT_THAT(message_of<UsageError>([&] { step(false); }),
                ::testing::AllOf(::testing::HasSubstr("not \"1.weight\", the first of 6"),
                                 ::testing::HasSubstr("in the place of \"5.weight\"")))
        << device;
    EXPECT_EQ(optimizer.version(), 0);
    if (kind == std::string("one_device")) step(true);
  }
}

TEST_F(FusedStepOnDevices, TrainsAsTheCpuDoes) {
  DeviceJob job{.replicas = 1,
                .device = "cpu",
                .recipe = optim::sgd({.learning_rate = 0.1, .momentum = 0.9})};
  const at::Tensor cpu = weights_of(job)[0];
  job.device = "cuda:0";
  EXPECT_LT((cpu - weights_of(job)[0]).abs().max().item<double>(), 1e-6);
  job.replicas = 2;
  EXPECT_LT((cpu - oracle(job)).abs().max().item<double>(), 1e-6);
}

TEST_F(FusedStepOnDevices, EqualsOneDeviceInTurn) {
  for (const auto& [replicas, device] : {std::pair{2, "cuda:0,1"},
                                         {3, "cuda"},
                                         {2, "cuda:0x2"},
                                         {3, "cuda:1x3"},
                                         {3, "cuda:0x2,1"},
                                         {1, "cuda:2"}})
    EXPECT_EQ(wrong_orders({.replicas = replicas, .device = device}), "") << device;
}

TEST_F(FusedStepOnDevices, WithEveryRuleThatDevicesHave) {
  const optim::Clip norm{.norm = 0.05}, global{.global_norm = 0.1}, value{.value = 0.01};
  const std::vector<optim::Recipe> recipes{
      optim::sgd({.learning_rate = 0.1}),
      optim::sgd({.learning_rate = 0.1, .momentum = 0.9, .nesterov = true, .weight_decay = 1e-3}),
      optim::adamw({.learning_rate = 0.01, .weight_decay = 0.1}),
      optim::adam({.learning_rate = 0.01, .beta2 = 0.5, .amsgrad = true}),
      {optim::adam({.learning_rate = 0.01}), norm},
      {optim::adam({.learning_rate = 0.01}), global},
      {optim::sgd({.learning_rate = 0.1, .momentum = 0.5}), value},
      {optim::adamw({.learning_rate = 0.01}),
       {},
       {{.pattern = "*.bias", .learning_rate_factor = 0.5, .weight_decay = 0.0}}}};
  for (size_t i = 0; i < recipes.size(); ++i)
    for (const auto& [replicas, device] :
         {std::pair{2, "cuda:0,1"}, {3, "cuda:0x3"}, {1, "cuda:0"}})
      EXPECT_EQ(wrong_orders({.replicas = replicas, .device = device, .recipe = recipes[i]}, 4), "")
          << "recipe " << i << " on " << device;
}

TEST_F(FusedStepOnDevices, ParametersThatSomeReplicasDoNotUse) {
  for (const char* device : {"cuda:0,1", "cuda:0x2"})
    EXPECT_EQ(wrong_orders({.device = device, .unused = true}), "") << device;
}

TEST_F(FusedStepOnDevices, EveryWaitIsNeeded) {
  for (const std::string wait :
       {"gradients of the other replicas", "updates of the other replicas", "norms of gradients",
        "what the caller of run() has queued", "the end of run()"}) {
    DeviceJob job{.recipe = optim::adam({.learning_rate = 0.01})};
    if (wait == "norms of gradients")
      job.recipe = {optim::adam({.learning_rate = 0.01}), {.global_norm = 0.1}};
    const at::Tensor expected = oracle(job);
    const int wrong =
        seeds_that_miss(wait, kSeeds, [&] { return all_equal(weights_of(job), expected); });
    EXPECT_GT(wrong, 0) << "nobody misses the wait for " << wait;
    RecordProperty(wait, wrong);
  }
}

TEST_F(FusedStepOnDevices, NoHostWaitsInAHundredSteps) {
  Strategy strategy(
      {.kind = "mirrored", .replicas = 2, .threads_per_replica = 1, .device = "cuda:0,1"});
  Replicated<torch::nn::Sequential> net(strategy, small_net);
  Optimizer optimizer(net, optim::adam());
  const auto x = torch::rand({4, 64}).pin_memory();
  const auto steps = [&](int count) {
    strategy.run([&](ReplicaContext& replica) {
      for (int step = 0; step < count; ++step) {
        const auto there = x.to(replica.device(), /*non_blocking=*/true);
        optimizer.minimize(replica, net.local(replica)->forward(there).square().sum());
      }
    });
  };
  steps(1);
  fake_cuda::set_order(fake_cuda::Order::lazy);
  const auto before = fake_cuda::counts();
  steps(100);
  const auto queued = fake_cuda::counts() - before;
  EXPECT_EQ(queued.host_waits, 0);
  EXPECT_EQ(queued.synchronous, 0) << ::testing::PrintToString(fake_cuda::synchronous_operators());
  EXPECT_GT(queued.deferred, 100 * 2 * 10);
  fake_cuda::run_all();
}

}  // namespace
}  // namespace tutti::test
