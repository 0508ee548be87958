// fit() whose steps are one graph of the device: all figures are those of steps that the host
// makes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tests/support/message_of.h"
#include "tests/unit/device_train/device_model.h"

namespace tutti {
namespace {

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

}  // namespace
}  // namespace tutti
