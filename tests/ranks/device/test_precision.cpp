// Lower precision on devices: what a network computes in bfloat16 and float16, losses that are
// scaled without a host that waits.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "tutti/nn/precision.h"

#include "tests/support/device_job.h"
#include "tests/support/fake_cuda/fake_cuda_test.h"
#include "tests/support/message_of.h"

namespace tutti::test {
namespace {

using testing::HasSubstr;

// Powers of two round nothing; these do. The first overflows in float16, and the second.
constexpr optim::LossScaling kScaling{
    .initial = 1.5e8, .growth = 2.7, .growth_interval = 3, .backoff = 0.013};

struct PreciseJob {
  std::string kind = "mirrored";
  int replicas = 2;
  std::string device = "cuda:0,1";
  Precision precision = Precision::float16;
  bool scaled = true;
  int steps = 12;
  std::string reduction = "fused";
  std::function<void(Optimizer&)> watch = [](Optimizer&) {};  // before all steps, after each
};

StrategyOptions options_of(const PreciseJob& job) {
  return {.kind = job.kind,
          .replicas = job.replicas,
          .threads_per_replica = 1,
          .device = job.device,
          .seed = 11,
          .reduction = job.reduction};
}

/// One step of the replica's part of 6 samples, which are x.
void precise_step(ReplicaContext& replica, torch::nn::Sequential net, Optimizer& optimizer,
                  const at::Tensor& x, Precision precision) {
  const int64_t rows = 6 / replica.num_replicas_in_sync(), first = rows * replica.rank();
  const auto part = x.narrow(0, first, rows).to(replica.device());
  const auto y = torch::arange(first, first + rows).remainder(4).to(replica.device());
  at::Tensor made;
  {
    const Autocast autocast(precision, replica.device().is_cuda() ? "cuda" : "cpu");
    made = net->forward(part);
  }
  EXPECT_EQ(made.scalar_type(), precision == Precision::float16 ? at::kHalf : at::kBFloat16);
  const auto each = torch::cross_entropy_loss(made.to(at::kFloat), y, {}, at::Reduction::None);
  optimizer.minimize(replica, average_loss(each, 6));
}

struct PreciselyTrained {
  std::vector<at::Tensor> weights;
  std::optional<optim::LossScale> scale;
  at::Tensor scalars;
  int64_t version = 0;
};

PreciselyTrained train(const PreciseJob& job) {
  Strategy strategy(options_of(job));
  Replicated<torch::nn::Sequential> net(strategy, small_net);
  Optimizer optimizer(net, optim::adam({.learning_rate = 0.01}));
  if (job.scaled) optimizer.scale_losses(optim::LossScale(kScaling));
  const auto x = device_data(job.steps);
  job.watch(optimizer);
  for (int step = 0; step < job.steps; ++step) {
    strategy.run([&](ReplicaContext& replica) {
      precise_step(replica, net.local(replica), optimizer, x[step], job.precision);
    });
    job.watch(optimizer);
  }
  const UpdaterState state = optimizer.updater().state();
  return {flat_weights(net), optimizer.loss_scale(), state.tensors.back().second.clone(),
          optimizer.version()};
}

bool same(const optim::LossScale& one, const optim::LossScale& other) {
  return one.value() == other.value() && one.good_steps() == other.good_steps() &&
         one.skipped() == other.skipped();
}

class PrecisionOnDevices : public FakeCudaTest {
 protected:
  void SetUp() override {
    FakeCudaTest::SetUp();
    if (!IsSkipped()) fake_cuda::set_devices(3);
  }

  static PreciselyTrained in_turn(PreciseJob job) {
    fake_cuda::set_order(fake_cuda::Order::eager);
    job.kind = "one_device";
    job.device = "cuda:0";
    return train(job);
  }
};

TEST_F(PrecisionOnDevices, EqualsOneDeviceInTurn) {
  for (const bool half : {false, true})
    for (const auto& [replicas, device] :
         {std::pair{2, "cuda:0,1"}, {3, "cuda:0x2,1"}, {2, "cuda:0x2"}, {1, "cuda:2"}}) {
      const PreciseJob job{.replicas = replicas,
                           .device = device,
                           .precision = half ? Precision::float16 : Precision::bfloat16,
                           .scaled = half};
      const PreciselyTrained expected = in_turn(job);
      EXPECT_TRUE(std::isfinite(expected.weights[0].sum().item<double>()));
      in_all_orders(8, [&] {
        const PreciselyTrained found = train(job);
        EXPECT_TRUE(all_equal(found.weights, expected.weights[0])) << device;
        EXPECT_TRUE(torch::equal(found.scalars, expected.scalars)) << device;
        EXPECT_TRUE(!half || same(*found.scale, *expected.scale)) << device;
      });
      if (!half) continue;
      EXPECT_GE(expected.scale->skipped(), 2) << "steps that overflow are to be among them";
      EXPECT_LE(expected.scale->skipped(), 8) << "others too";
      // Skipped steps count as steps, not as updates.
      EXPECT_EQ(expected.version, job.steps);
      EXPECT_EQ(expected.scalars[0][-1].item<double>(), job.steps - expected.scale->skipped());
    }
}

// What the devices decide is what LossScale says of the same steps, to the bit.
TEST_F(PrecisionOnDevices, TheScaleIsThatOfTheHostsFormula) {
  optim::LossScale host(kScaling);
  at::Tensor before;
  train({.steps = 24, .watch = [&](Optimizer& optimizer) {
           const at::Tensor now = optimizer.updater().parameters(1)[0].detach().cpu();
           // A step that overflowed has changed no parameter.
           if (before.defined()) host.update(torch::equal(now, before));
           before = now;
           EXPECT_TRUE(same(*optimizer.loss_scale(), host));
         }});
  EXPECT_GE(host.skipped(), 2);
  EXPECT_LT(host.skipped(), 20);
}

// Replicas whose parameters the CPU updates: there the host decides.
TEST_F(PrecisionOnDevices, WhereTheCpuUpdatesTheHostDecidesTheSame) {
  const PreciseJob job{};
  const PreciselyTrained expected = in_turn(job);
  for (const char* device : {"cuda:0,1", "cuda:0x2"}) {
    const PreciselyTrained found = train({.device = device, .reduction = "all_reduce"});
    EXPECT_TRUE(same(*found.scale, *expected.scale));
    EXPECT_LT((found.weights[1] - expected.weights[0]).abs().max().item<double>(), 1e-3);
  }
}

TEST_F(PrecisionOnDevices, NoHostWaitsInAHundredScaledSteps) {
  Strategy strategy(options_of({}));
  Replicated<torch::nn::Sequential> net(strategy, small_net);
  Optimizer optimizer(net, optim::adam());
  optimizer.scale_losses(optim::LossScale(kScaling));
  const auto x = device_data(1)[0].narrow(0, 0, 3).pin_memory();
  const auto steps = [&](int count) {
    strategy.run([&](ReplicaContext& replica) {
      for (int step = 0; step < count; ++step) {
        const auto there = x.to(replica.device(), /*non_blocking=*/true);
        const Autocast autocast(Precision::float16, "cuda");
        const auto made = net.local(replica)->forward(there).to(at::kFloat);
        optimizer.minimize(replica, made.square().sum());
      }
    });
  };
  steps(1);
  fake_cuda::set_order(fake_cuda::Order::lazy);
  const auto before = fake_cuda::counts();
  steps(100);
  const auto queued = fake_cuda::counts() - before;
  EXPECT_EQ(queued.host_waits, 0);
  EXPECT_EQ(queued.synchronous, 0) << testing::PrintToString(fake_cuda::synchronous_operators());
  fake_cuda::run_all();
  EXPECT_GT(optimizer.loss_scale()->skipped(), 0);
}

// No scale helps against data that is no number: every replica is told so, if some steps late.
TEST_F(PrecisionOnDevices, AScaleThatHelpsNobodyEndsTheTraining) {
  in_all_orders(2, [] {
    Strategy strategy(options_of({}));
    Replicated<torch::nn::Sequential> net(strategy, small_net);
    Optimizer optimizer(net, optim::adam());
    optimizer.scale_losses(optim::LossScale());
    const auto x = torch::full({6, 64}, std::nan(""));
    const auto run = [&] {
      strategy.run([&](ReplicaContext& replica) {
        for (int step = 0; step < 600; ++step)
          precise_step(replica, net.local(replica), optimizer, x, Precision::float16);
      });
    };
    EXPECT_THAT(message_of<Error>(run), HasSubstr("not finite even where losses are multiplied"));
    fake_cuda::run_all();
  });
}

TEST_F(PrecisionOnDevices, StepsThatAreLeftOutForGoodDoNotTouchTheScale) {
  for (const std::string device : {"cuda:0,1", "cuda:1"}) {
    const int replicas = device == "cuda:1" ? 1 : 2;
    std::optional<optim::LossScale> before;
    const PreciseJob job{.replicas = replicas, .device = device, .steps = 5};
    Strategy strategy(options_of(job));
    Replicated<torch::nn::Sequential> net(strategy, small_net);
    Optimizer optimizer(net, optim::adam());
    optimizer.scale_losses(optim::LossScale(kScaling));
    const auto x = device_data(8);
    for (int step = 0; step < 8; ++step) {
      if (step == 5) before = optimizer.loss_scale();
      strategy.run([&](ReplicaContext& replica) {
        const bool bad = step == 5 && replica.rank() == 0;
        optimizer.leave_out_if(replica, torch::tensor(bad).to(replica.device()));
        precise_step(replica, net.local(replica), optimizer, x[step], Precision::float16);
      });
    }
    EXPECT_EQ(optimizer.forget_left_out(), 3);
    EXPECT_EQ(optimizer.version(), 5);
    EXPECT_TRUE(same(*optimizer.loss_scale(), *before));
  }
}

TEST_F(PrecisionOnDevices, ReplicasThatComeHaveTheScaleOfTheOthers) {
  PreciseJob job{.replicas = 1, .device = "cuda"};
  Strategy strategy(options_of(job));
  Replicated<torch::nn::Sequential> net(strategy, small_net);
  Optimizer optimizer(net, optim::adam());
  optimizer.scale_losses(optim::LossScale(kScaling));
  const auto x = device_data(6);
  for (int step = 0; step < 6; ++step) {
    if (step == 3) {
      const auto before = optimizer.loss_scale();
      strategy.resize(3);
      EXPECT_TRUE(same(*optimizer.loss_scale(), *before));
    }
    strategy.run([&](ReplicaContext& replica) {
      precise_step(replica, net.local(replica), optimizer, x[step], Precision::float16);
    });
  }
  const auto weights = flat_weights(net);
  EXPECT_TRUE(all_equal(weights, weights[0]));
}

}  // namespace
}  // namespace tutti::test
