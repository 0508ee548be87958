// fit() whose steps are one graph of the device: all figures are those of steps that the host
// makes.
#include <ATen/Context.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tutti/nn/lambda.h"
#include "tutti/nn/layers.h"
#include "tutti/strategy/input/from_tensors.h"
#include "tutti/train/losses/overlap.h"

#include "tests/support/message_of.h"
#include "tests/unit/device_train/device_model.h"

namespace tutti {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class FitAsAGraph : public test::FakeCudaTest {};

Strategy strategy_with(bool step_graph) {
  StrategyOptions options{.kind = "one_device", .threads_per_replica = 1, .device = "cuda:0"};
  options.seed = 7;
  options.step_graph = step_graph;
  return Strategy(options);
}

// With a last batch that is smaller, and a rate that is a float32, as that of a device.
Trained trained_by(bool step_graph, bool scaled) {
  Model model(strategy_with(step_graph), [] { return small_graph(0); });
  CompileOptions how = adam_and_accuracy();
  how.optimizer = optim::adam({.learning_rate = 0.0078125});
  if (scaled) {
    how.precision = Precision::float16;
    how.loss_scaling = optim::LossScaling{.initial = 0x1p26, .growth_interval = 4};
  }
  model.compile(how);
  FitOptions options = three_epochs();
  options.validation = three_classes(9).batch(9);
  const History history = model.fit(flat_samples(), options);
  return trained_of(model, history);
}

TEST_F(FitAsAGraph, HasTheFiguresOfTheHostsSteps) {
  for (const bool scaled : {false, true}) {
    test::fake_cuda::set_order(test::fake_cuda::Order::eager);
    const Trained expected = trained_by(false, scaled);
    test::in_all_orders(4, [&] { EXPECT_EQ(trained_by(true, scaled), expected); });
  }
}

TEST_F(FitAsAGraph, WhatItCannotDoIsSaid) {
  const auto fit = [](double dropout, FitOptions options) {
    Model model = small_model(strategy_with(true), dropout);
    options.verbose = 0;
    model.fit(flat_samples(), options);
  };
  EXPECT_THAT(test::message_of<UsageError>([&] { fit(0, {.accumulate = 2}); }),
              HasSubstr("a step graph is of steps of one batch"));
  EXPECT_THAT(test::message_of<Error>([&] { fit(0.3, {.epochs = 3}); }), HasSubstr("nn::Dropout"));
}

TEST_F(FitAsAGraph, ALambdaIsRefusedByName) {
  Model model(strategy_with(true), [] {
    const auto x = nn::input({4});
    const auto same = nn::lambda("same", {4}, [](at::TensorList in) { return in[0]; });
    return nn::Graph(x, nn::linear(3)(same.named("own")(x)));
  });
  EXPECT_THAT(test::message_of<UsageError>([&] { model.compile(adam_and_accuracy()); }),
              HasSubstr("compile: layer \"own\" is a function of the program's own (same)"));
}

/// While the batch is on the host.
TEST_F(FitAsAGraph, StepsOutOfRangeAreNamedWithTheirSample) {
  for (const bool step_graph : {false, true}) {
    Model model(strategy_with(step_graph), [] {
      const auto x = nn::input({4, 2}), count = nn::input({1}, DType::int64);
      return nn::Graph({{"x", x}, {"count", count}},
                       {{"y", nn::linear(3)(nn::lstm(2).named("strokes")(x, count))}});
    });
    model.compile(adam_and_accuracy());
    at::Tensor counts = torch::full({6, 1}, 4, at::kLong);
    counts[4][0] = 5;
    const at::Tensor labels = torch::zeros({6}, at::kLong);
    const auto told = [&](const auto& work) { return test::message_of<DataError>(work); };
    const auto data = data::from_tensors({torch::randn({6, 4, 2}), counts, labels}).batch(3);
    EXPECT_THAT(told([&] { model.fit(data, {.epochs = 1, .verbose = 0}); }),
                HasSubstr("lstm \"strokes\": sample 4 of the dataset has 5 steps"));
    EXPECT_THAT(told([&] { model.evaluate(data); }),
                HasSubstr("lstm \"strokes\": sample 4 of the dataset has 5 steps"));
  }
}

// Neither a captured step nor a run of deterministic operators ends in an error of the device.
TEST_F(FitAsAGraph, ALossWhoseLabelsTheHostReadsIsRefusedFirst) {
  const auto compile = [](const Strategy& strategy) {
    Model model(strategy, [] { return small_graph(0); });
    model.compile({.loss = losses::ctc()});
  };
  EXPECT_THAT(test::message_of<UsageError>([&] { compile(strategy_with(true)); }),
              AllOf(HasSubstr("compile: loss ctc: its labels are read on the host"),
                    HasSubstr("leave out step_graph")));
  EXPECT_NO_THROW(compile(strategy_with(false)));
  struct Deterministic {
    Deterministic() { at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/false); }
    ~Deterministic() { at::globalContext().setDeterministicAlgorithms(false, false); }
  };
  const Deterministic on;
  EXPECT_THAT(test::message_of<UsageError>([&] { compile(strategy_with(false)); }),
              AllOf(HasSubstr("compile: loss ctc: no device adds its gradient in one order"),
                    HasSubstr("--device cpu")));
  EXPECT_NO_THROW(compile(Strategy({.kind = "one_device", .threads_per_replica = 1})));
}

}  // namespace
}  // namespace tutti
