// A step that its device does again by itself: the bits of steps that the host makes, counted as
// they are, for one shape of inputs.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>
#include <string>
#include <vector>

#include "tutti/base/log.h"
#include "tutti/nn/dropout.h"
#include "tutti/nn/precision.h"
#include "tutti/nn/sample_context.h"
#include "tutti/sync/on_devices/detail/captured_steps.h"

#include "tests/support/device_job.h"
#include "tests/support/fake_cuda/fake_cuda_test.h"
#include "tests/support/message_of.h"

namespace tutti::test {
namespace {

using detail::CapturedSteps;
using testing::AllOf;
using testing::HasSubstr;

struct GraphJob {
  bool step_graph = true;
  std::string kind = "mirrored";
  // Rates that are float32: a device's rate is one.
  optim::Recipe recipe = optim::adam({.learning_rate = 0.015625});
  std::vector<int64_t> rows = std::vector<int64_t>(12, 6);  ///< of each step's batch
  bool scaled = false;                                      ///< and in float16
};

struct Repeated {
  at::Tensor weights;
  at::Tensor scalars;
  int64_t version = 0;
  std::vector<double> losses;
  int calls = 0;  ///< of the step's function
  std::optional<optim::LossScale> scale;
};

StrategyOptions graph_options(const GraphJob& job) {
  StrategyOptions options = device_options({.kind = job.kind, .replicas = 1, .device = "cuda:1"});
  options.step_graph = job.step_graph;
  return options;
}

Repeated repeat(const GraphJob& job) {
  Strategy strategy(graph_options(job));
  Replicated<torch::nn::Sequential> net(strategy, small_net);
  Optimizer optimizer(net, job.recipe);
  if (job.scaled)
    optimizer.scale_losses(optim::LossScale({.initial = 0x1p27, .growth_interval = 3}));
  Repeated made;
  const auto data = device_data(static_cast<int>(job.rows.size()));
  for (size_t step = 0; step < job.rows.size(); ++step) {
    if (step == 8) optimizer.set_learning_rate(0.0078125);
    const int64_t rows = job.rows[step];
    const auto x = data[static_cast<int64_t>(step)].narrow(0, 0, rows);
    const auto losses = strategy.run([&](ReplicaContext& replica) {
      const std::vector<at::Tensor> inputs{x.to(replica.device()),
                                           torch::arange(rows).remainder(4).to(replica.device())};
      return optimizer.minimize(replica, inputs, [&](at::TensorList in) -> StepLoss {
        ++made.calls;
        at::Tensor y;
        {
          const Autocast autocast(job.scaled ? Precision::float16 : Precision::float32, "cuda");
          y = net.local(replica)->forward(in[0]).to(at::kFloat);
        }
        const auto each = torch::cross_entropy_loss(y, in[1], {}, at::Reduction::None);
        return {.loss = average_loss(each, rows), .outputs = {each.sum()}};
      })[0];
    });
    made.losses.push_back(losses.local(0).item<double>());
  }
  made.weights = flat_weights(net)[0];
  made.scalars = optimizer.updater().state().tensors.back().second.clone();
  made.version = optimizer.version();
  made.scale = optimizer.loss_scale();
  return made;
}

void expect_equal(const Repeated& one, const Repeated& other) {
  EXPECT_TRUE(torch::equal(one.weights, other.weights));
  EXPECT_TRUE(torch::equal(one.scalars, other.scalars));
  EXPECT_EQ(one.version, other.version);
  EXPECT_EQ(one.losses, other.losses);
}

class StepGraphs : public FakeCudaTest {
 protected:
  void SetUp() override {
    FakeCudaTest::SetUp();
    if (!IsSkipped()) fake_cuda::set_devices(3);
  }

  static Repeated by_host(GraphJob job) {
    fake_cuda::set_order(fake_cuda::Order::eager);
    job.step_graph = false;
    return repeat(job);
  }
};

TEST_F(StepGraphs, HaveTheBitsOfTheHostsSteps) {
  const double rate = 0.015625;
  const std::vector<optim::Recipe> recipes{
      optim::adam({.learning_rate = rate}),
      optim::adam({.learning_rate = rate, .beta2 = 0.5, .amsgrad = true}),
      optim::sgd({.learning_rate = rate, .momentum = 0.9, .weight_decay = 1e-3}),
      {optim::adamw({.learning_rate = rate}),
       {.norm = 0.05},
       {{.pattern = "*.bias", .learning_rate_factor = 0.5, .weight_decay = 0.0}}},
      {optim::adam({.learning_rate = rate}), {.global_norm = 0.1}}};
  for (const char* kind : {"mirrored", "one_device"})
    for (const optim::Recipe& recipe : recipes) {
      const GraphJob job{.kind = kind, .recipe = recipe};
      const Repeated expected = by_host(job);
      EXPECT_EQ(expected.calls, 12);
      in_all_orders(4, [&] {
        const Repeated found = repeat(job);
        expect_equal(found, expected);
        EXPECT_EQ(found.calls, CapturedSteps::kWarmUp + 1);
      });
    }
}

TEST_F(StepGraphs, OtherShapesGoOnWithout) {
  const GraphJob job{.rows = {4, 6, 6, 4, 6, 6, 6, 6, 4, 4, 4, 6, 2, 6}};
  const Repeated expected = by_host(job);
  in_all_orders(4, [&] {
    const Repeated found = repeat(job);
    expect_equal(found, expected);
    // The batches of 6 are the first that came often enough: four calls, then none.
    EXPECT_EQ(found.calls, CapturedSteps::kWarmUp + 1 + 6);
  });
}

// Batches of 4 have come before the capture, those of 2 come after it; both go on, twice.
TEST_F(StepGraphs, EachShapeThatGoesOnWithoutIsSaidOnce) {
  const LogLevel before = log_level();
  set_log_level(LogLevel::info);
  ::testing::internal::CaptureStderr();
  repeat({.rows = {4, 6, 6, 6, 6, 4, 2, 6, 2, 4, 6}});
  const std::string log = ::testing::internal::GetCapturedStderr();
  set_log_level(before);
  for (const char* const shape : {"[4, 64], [4]", "[2, 64], [2]"}) {
    const std::string line = fmt::format("step_graph: inputs {} go on without it", shape);
    const size_t first = log.find(line);
    EXPECT_NE(first, std::string::npos) << line << " is not in:\n" << log;
    EXPECT_EQ(log.find(line, first + 1), std::string::npos) << log;
  }
}

TEST_F(StepGraphs, WithScaledLossesAndStepsThatOverflow) {
  const GraphJob job{.rows = std::vector<int64_t>(24, 6), .scaled = true};
  const Repeated expected = by_host(job);
  EXPECT_GT(expected.scale->skipped(), CapturedSteps::kWarmUp + 1) << "some in replays";
  EXPECT_LT(expected.scale->skipped(), 20);
  in_all_orders(4, [&] {
    const Repeated found = repeat(job);
    expect_equal(found, expected);
    EXPECT_EQ(found.calls, CapturedSteps::kWarmUp + 1);
    EXPECT_EQ(found.scale->value(), expected.scale->value());
    EXPECT_EQ(found.scale->skipped(), expected.scale->skipped());
  });
}

/// A step with `part` in its forward pass, until it is captured.
void run_with(const std::function<at::Tensor(const at::Tensor&)>& part) {
  Strategy strategy(graph_options({}));
  Replicated<torch::nn::Sequential> net(strategy, small_net);
  Optimizer optimizer(net, optim::adam());
  const auto x = device_data(1)[0];
  for (int step = 0; step < 6; ++step)
    strategy.run([&](ReplicaContext& replica) {
      const nn::SampleContext place({.seed = 1, .step = step, .first_row = 0});
      optimizer.minimize(replica, {x.to(replica.device())}, [&](at::TensorList in) -> StepLoss {
        return {.loss = net.local(replica)->forward(part(in[0])).square().sum()};
      });
    });
}

TEST_F(StepGraphs, WhatCannotBeCapturedIsSaid) {
  const auto words = [](const std::function<at::Tensor(const at::Tensor&)>& part) {
    return message_of<Error>([&] { run_with(part); });
  };
  EXPECT_NO_THROW(run_with([](const at::Tensor& x) { return 2 * x; }));
  EXPECT_THAT(
      words([](const at::Tensor& x) { return x * x.sum().item<double>(); }),
      AllOf(HasSubstr("the step cannot be captured: item()"), HasSubstr("leave out --step-graph")));
  EXPECT_THAT(words([](const at::Tensor& x) { return nn::Dropout(0.5)->forward(x); }),
              AllOf(HasSubstr("cannot be captured"), HasSubstr("nn::Dropout")));
  EXPECT_THAT(message_of<UsageError>([] {
                Strategy strategy(graph_options({}));
                Replicated<torch::nn::Sequential> net(strategy, small_net);
                Optimizer optimizer(net, optim::adam());
                strategy.run([&](ReplicaContext& replica) {
                  optimizer.minimize(replica, {torch::ones({2, 64})}, StepFunction());
                });
              }),
              HasSubstr("input 0 is on cpu, expected a tensor on cuda:1"));
}

TEST_F(StepGraphs, AreOfOneReplicaOnOneDevice) {
  const auto words = [](const StrategyOptions& options, const optim::Recipe& recipe) {
    return message_of<UsageError>([&] {
      Strategy strategy(options);
      Replicated<torch::nn::Sequential> net(strategy, small_net);
      Optimizer optimizer(net, recipe);
    });
  };
  StrategyOptions options = graph_options({});
  EXPECT_THAT(words(options, optim::lamb()), HasSubstr("with sgd, adam or adamw"));
  options.replicas = 2;
  options.device = "cuda:0,1";
  EXPECT_THAT(words(options, optim::adam()), HasSubstr("got 2 replicas on --device cuda:0,1"));
  options.replicas = 1;
  options.device = "cpu";
  EXPECT_THAT(words(options, optim::adam()),
              HasSubstr("--step-graph under mirrored: it is of GPUs, and --device cpu uses none"));
}

TEST_F(StepGraphs, NoHostWaitsAndFewTasksOfTheHost) {
  Strategy strategy(graph_options({}));
  Replicated<torch::nn::Sequential> net(strategy, small_net);
  Optimizer optimizer(net, optim::adam());
  const auto x = device_data(1)[0].pin_memory();
  const auto steps = [&](int count) {
    strategy.run([&](ReplicaContext& replica) {
      for (int step = 0; step < count; ++step)
        optimizer.minimize(replica, {x.to(replica.device(), /*non_blocking=*/true)},
                           [&](at::TensorList in) -> StepLoss {
                             return {.loss = net.local(replica)->forward(in[0]).square().sum()};
                           });
    });
  };
  steps(CapturedSteps::kWarmUp + 1);
  fake_cuda::set_order(fake_cuda::Order::lazy);
  const auto before = fake_cuda::counts();
  steps(100);
  const auto queued = fake_cuda::counts() - before;
  EXPECT_EQ(queued.host_waits, 0);
  EXPECT_EQ(queued.deferred, 0) << "operators that the host queued itself";
  EXPECT_EQ(optimizer.version(), CapturedSteps::kWarmUp + 1 + 100);
  fake_cuda::run_all();
}

}  // namespace
}  // namespace tutti::test
