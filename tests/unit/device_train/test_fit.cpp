// fit(), evaluate() and predict() with replicas on devices, in whatever order these work.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <memory>
#include <string>

#include "tutti/sync/tensors.h"
#include "tutti/train/model/weight_average.h"

#include "tests/support/message_of.h"
#include "tests/support/two_outputs.h"
#include "tests/unit/device_train/device_model.h"

namespace tutti {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class FitOnDevices : public test::FakeCudaTest {};

Trained trained_at(const DevicePlace& place) {
  Model model = model_at(place);
  const History history = model.fit(samples(), three_epochs());
  return trained_of(model, history);
}

TEST_F(FitOnDevices, HasTheBitsOfReplicasThatTakeTurnsOnOneInAllOrders) {
  const Trained expected = trained_at({"one_device", 2, "cuda:0"});
  for (const DevicePlace& place : device_places()) {
    if (place.replicas != 2) continue;
    SCOPED_TRACE(words_of(place));
    test::in_all_orders(4, [&] { EXPECT_EQ(trained_at(place), expected); });
  }
}

// A step of one's own, the average of the weights, and weights of classes of two outputs.
std::string extras_at(const DevicePlace& place) {
  Model model(strategy_at(place), [] { return graph_with_state(); });
  const auto step = [](const StepData& data) -> StepOutcome {
    const at::Tensor y = data.forward(data.inputs)[0];
    return {.losses = torch::cross_entropy_loss(y, data.targets[0], {}, at::Reduction::None) +
                      0.1 * y.square().mean(1),
            .outputs = {y}};
  };
  model.compile({.optimizer = optim::adam({.learning_rate = 0.01}),
                 .metrics = {metrics::accuracy()},
                 .train_step = step,
                 .test_step = step});
  const auto average = std::make_shared<WeightAverage>(model);
  FitOptions options = three_epochs();
  options.callbacks = {average};
  const Trained trained = trained_of(model, model.fit(samples(), options));
  std::string words = trained.sha256;
  for (const auto& column : trained.columns)
    for (const double value : column) words += fmt::format(" {}", value);
  const auto averaged = average->use();
  words += " " + model.weights_sha256();
  Model two(strategy_at(place), test::two_outputs);
  two.compile(
      {.optimizer = optim::sgd({.learning_rate = 0.05}), .outputs = test::kind_and_height()});
  const History history = two.fit(test::places(20).batch(8),
                                  {.verbose = 0, .class_weights = {{"kind", {{0, 0.5}, {2, 3}}}}});
  return words + fmt::format(" {} {}", history.last("kind_loss"), two.weights_sha256());
}

TEST_F(FitOnDevices, StepsOfOnesOwnAndAveragesHaveTheBitsOfTurnsInAllOrders) {
  const std::string expected = extras_at({"one_device", 2, "cuda:0"});
  for (const DevicePlace& place : device_places()) {
    if (place.replicas != 2) continue;
    SCOPED_TRACE(words_of(place));
    test::in_all_orders(4, [&] { EXPECT_EQ(extras_at(place), expected); });
  }
}

// No part of a batch is a single row, of which the batch norm has no variance.
TEST_F(FitOnDevices, SharesMoveAsAFileSays) {
  const test::TempFolder folder;
  const std::string file = folder / "shares.json";
  test::put_bytes(file, data::ShareSchedule{{{2, {5, 3}}, {4, {2, 6}}, {7, {1, 1}}}}.to_json(2));
  const Trained in_turn = trained_at({"one_device", 2, "cuda:0", file});
  EXPECT_NE(in_turn, trained_at({"one_device", 2, "cuda:0"}));
  for (const char* device : {"cuda:0,1", "cuda:0x2"})
    EXPECT_EQ(trained_at({"mirrored", 2, device, file}), in_turn) << device;
}

TEST_F(FitOnDevices, NobodyMeasuresSpeeds) {
  EXPECT_THAT(
      test::message_of<UsageError>([] {
        const Strategy strategy(
            {.kind = "mirrored", .replicas = 2, .device = "cuda:0,1", .by_speed = BySpeed{}});
      }),
      HasSubstr("replicas on GPUs queue their work"));
}

// Weights are updated by another kernel there, so that figures are near, not equal. Without batch
// norm: the gradient of a bias before it is rounding alone, of which Adam makes whole steps.
TEST_F(FitOnDevices, LearnsWhatTheCpuLearns) {
  const auto trained = [](const DevicePlace& place) {
    Model model = small_model(strategy_at(place), 0.3);
    FitOptions options = three_epochs();
    options.validation = three_classes(9).batch(9);
    return trained_of(model, model.fit(flat_samples(), options));
  };
  const Trained cpu = trained({"mirrored", 2, "cpu"});
  for (const DevicePlace& place : device_places()) {
    SCOPED_TRACE(words_of(place));
    const Trained gpu = trained(place);
    ASSERT_EQ(gpu.columns.size(), cpu.columns.size());
    EXPECT_EQ(gpu.steps, cpu.steps);
    for (size_t column = 0; column < cpu.columns.size(); ++column)
      for (size_t epoch = 0; epoch < cpu.columns[column].size(); ++epoch)
        EXPECT_NEAR(gpu.columns[column][epoch], cpu.columns[column][epoch], 1e-5)
            << "column " << column << ", epoch " << epoch;
  }
}

// What is waited for is at the ends of epochs, however many steps these have.
TEST_F(FitOnDevices, NoStepWaitsForADevice) {
  for (const DevicePlace& place : device_places()) {
    SCOPED_TRACE(words_of(place));
    const auto waits_of = [&](int64_t steps) {
      Model model = model_at(place);
      const auto before = test::fake_cuda::counts();
      EXPECT_EQ(model.fit(pictures(4 * steps).batch(4), {.verbose = 0}).steps, steps);
      return (test::fake_cuda::counts() - before).host_waits;
    };
    EXPECT_EQ(waits_of(104), waits_of(4));
  }
}

TEST_F(FitOnDevices, AccumulatedBatchesAndWeightsOfSamplesCount) {
  const auto flat = three_classes(36).batch(36).epoch({}).batch(0);
  std::vector<float> weights;
  for (int i = 0; i < 36; ++i) weights.push_back(static_cast<float>(i % 5) / 2);
  const auto weighted =
      data::from_arrays({flat.columns[0], flat.columns[1], data::array_of(weights, {36})}).batch(6);
  const auto loss_at = [&](const DevicePlace& place) {
    Model model = small_model(strategy_at(place));
    return model.fit(weighted, {.verbose = 0, .accumulate = 3}).last("train_loss");
  };
  const double expected = loss_at({"mirrored", 2, "cpu"});
  for (const DevicePlace& place : device_places())
    EXPECT_NEAR(loss_at(place), expected, 1e-5) << words_of(place);
}

TEST_F(FitOnDevices, LabelsThatDoNotCountAreThoseOfTheCpu) {
  const auto trained = [](const DevicePlace& place, int64_t accumulate) {
    Model model(strategy_at(place), [] { return small_graph(); });
    model.compile({.optimizer = optim::sgd({.learning_rate = 0.1}),
                   .loss = losses::sparse_categorical_crossentropy({.ignore_label = 2}),
                   .metrics = {metrics::accuracy(), metrics::perplexity()}});
    const History history = model.fit(
        three_classes(36).batch(6),
        {.validation = three_classes(7).batch(4), .verbose = 0, .accumulate = accumulate});
    return std::pair(trained_of(model, history).columns, model.modules().module(0)->parameters());
  };
  for (const int64_t accumulate : {1, 3}) {
    const auto [columns, parameters] = trained({"mirrored", 2, "cpu"}, accumulate);
    for (const DevicePlace& place : device_places()) {
      SCOPED_TRACE(words_of(place));
      const auto [figures, there] = trained(place, accumulate);
      ASSERT_EQ(figures.size(), columns.size());
      for (size_t i = 0; i < columns.size(); ++i)
        EXPECT_NEAR(figures[i].back(), columns[i].back(), 1e-5);
      for (size_t i = 0; i < parameters.size(); ++i)
        EXPECT_TRUE(torch::allclose(there[i].cpu(), parameters[i], 1e-4, 1e-6));
    }
  }
}

// On the CPU the weights are those of the device, so that scores differ by rounding alone.
TEST_F(FitOnDevices, ScoresAndOutputsAreThoseOfTheCpuWithTheSameWeights) {
  const test::TempFolder folder;
  for (const DevicePlace& place : device_places()) {
    SCOPED_TRACE(words_of(place));
    Model model = model_at(place);
    model.fit(samples(), {.verbose = 0});
    model.save(folder / "weights.safetensors");
    Model on_cpu = model_at({"one_device", 1, "cpu"});
    on_cpu.load(folder / "weights.safetensors");
    EXPECT_EQ(on_cpu.weights_sha256(), model.weights_sha256());
    test::in_all_orders(3, [&] {
      const Scores got = model.evaluate(samples()), expected = on_cpu.evaluate(samples());
      EXPECT_NEAR(got.loss, expected.loss, 1e-6);
      EXPECT_EQ(got.at("accuracy"), expected.at("accuracy"));
      EXPECT_EQ(got.samples, 30);
      const at::Tensor outputs = model.predict(samples());
      EXPECT_TRUE(outputs.is_cpu());
      EXPECT_TRUE(outputs.allclose(on_cpu.predict(samples()), 1e-5, 1e-6));
      const at::Tensor some = torch::sin(torch::arange(20, at::kFloat)).view({5, 1, 2, 2});
      EXPECT_TRUE(model.predict(some).is_cpu());
      EXPECT_TRUE(model.predict(some).allclose(on_cpu.predict(some), 1e-5, 1e-6));
    });
  }
}

TEST_F(FitOnDevices, WeightsOfTheCpuGoOnThereAndBack) {
  const test::TempFolder folder;
  Model on_cpu = model_at({"one_device", 1, "cpu"});
  on_cpu.fit(samples(), {.verbose = 0});
  on_cpu.save(folder / "cpu.safetensors");
  Model model = model_at({"mirrored", 2, "cuda:0,1"});
  model.load(folder / "cpu.safetensors");
  EXPECT_EQ(model.weights_sha256(), on_cpu.weights_sha256());
  model.save(folder / "gpu.safetensors");
  EXPECT_EQ(test::get_bytes(folder / "gpu.safetensors"),
            test::get_bytes(folder / "cpu.safetensors"));
}

// No device has this rule: the CPU updates parameters of its own, which must follow. At a rate of 0
// an update shows which values it began with.
TEST_F(FitOnDevices, LoadedAndPutBackWeightsAreThoseThatTheCpuUpdates) {
  const test::TempFolder folder;
  const auto samples = three_classes(36).batch(6);
  for (const DevicePlace& place : device_places()) {
    SCOPED_TRACE(words_of(place));
    Model model(strategy_at(place), [] { return small_graph(); });
    model.compile({.optimizer = optim::adagrad(),
                   .loss = losses::sparse_categorical_crossentropy(),
                   .learning_rate = schedules::piecewise_constant(
                       {.boundaries = {5, 17, 29}, .values = {0.1, 0, 0.1, 0}})});
    model.fit(samples, {.verbose = 0});
    const std::string first = model.weights_sha256();
    model.save(folder / "first.safetensors");
    model.fit(samples, {.epochs = 2, .verbose = 0});  // at 0
    EXPECT_EQ(model.weights_sha256(), first);
    FitOptions worst{.epochs = 2, .verbose = 0};  // the loss falls, so that the first is put back
    worst.callbacks = {callbacks::early_stopping({.monitor = "loss",
                                                  .patience = 5,
                                                  .better = Better::higher,
                                                  .restore_best_weights = true})};
    model.fit(samples, worst);
    const std::string put_back = model.weights_sha256();
    EXPECT_NE(put_back, first);
    model.fit(samples, {.verbose = 0});  // at 0
    EXPECT_EQ(model.weights_sha256(), put_back);
    model.load(folder / "first.safetensors");
    model.fit(samples, {.verbose = 0});
    EXPECT_EQ(model.weights_sha256(), first);
  }
}

TEST_F(FitOnDevices, OneBatchAtATime) {
  const auto flat = three_classes(12).batch(12).epoch({}).batch(0);
  const at::Tensor x = tensor_of(flat.columns[0]), y = tensor_of(flat.columns[1]);
  Model model = small_model(strategy_at({"mirrored", 2, "cuda:0,1"}));
  Model on_cpu = small_model(strategy_at({"mirrored", 2, "cpu"}));
  EXPECT_NEAR(model.train_on_batch(x, y).loss, on_cpu.train_on_batch(x, y).loss, 1e-5);
  EXPECT_NEAR(model.test_on_batch(x, y).loss, on_cpu.test_on_batch(x, y).loss, 1e-5);
  EXPECT_EQ(model.optimizer().version(), 1);
}

TEST_F(FitOnDevices, ALabelOutOfRangeNamesItsSampleBeforeAnythingIsWrong) {
  auto flat = pictures(30).batch(30).epoch({}).batch(0);
  flat.columns[1].as<int64_t>()[17] = 5;
  const auto data = data::from_arrays(flat.columns).batch(10);
  for (const DevicePlace& place : device_places()) {
    Model model = model_at(place);
    EXPECT_THAT(test::message_of<DataError>([&] { model.fit(data, {.verbose = 0}); }),
                AllOf(HasSubstr("step 2 of 3"), HasSubstr("sample 17 of the dataset has label 5")))
        << words_of(place);
  }
}

// It is asked once its outputs have come, steps later.
TEST_F(FitOnDevices, AMetricThatCannotBeHadNamesTheStepOfItsBatch) {
  for (const DevicePlace& place : device_places()) {
    Model model(strategy_at(place), [] { return small_graph(); });
    CompileOptions options = adam_and_accuracy();
    options.metrics = {metrics::binary_accuracy()};
    model.compile(options);
    EXPECT_THAT(test::message_of<UsageError>(
                    [&] { model.fit(three_classes(30).batch(10), {.verbose = 0}); }),
                AllOf(HasSubstr("epoch 1 of 1, step 1 of 3"), HasSubstr("metric binary_accuracy")))
        << words_of(place);
  }
}

TEST_F(FitOnDevices, WhatIsOnAnotherDeviceIsNamed) {
  Model model = small_model(strategy_at({"mirrored", 2, "cuda:0,1"}));
  EXPECT_THAT(test::message_of<UsageError>(
                  [&] { model.predict(torch::ones({2, 4}).to(at::Device(at::kCUDA, 1))); }),
              HasSubstr("input 1 of 1 is on cuda:1; expected the CPU, or cuda:0"));
  const at::Tensor there = torch::ones({2, 4}).to(at::Device(at::kCUDA, 0));
  EXPECT_THAT(test::message_of<UsageError>(
                  [&] { model.train_on_batch(there, torch::zeros({2}, at::kLong)); }),
              HasSubstr("inputs: expected a tensor [batch, ...] on the CPU, got one on cuda:0"));
  const auto& module = *model.modules().module(1);
  module.parameters()[1].set_data(torch::ones({8}));
  EXPECT_THAT(test::message_of<UsageError>([&] { model.fit(three_classes(9).batch(3)); }),
              AllOf(HasSubstr("parameter \"linear_1.bias\" of the model is on cpu"),
                    HasSubstr("computes on cuda:1")));
}

TEST_F(FitOnDevices, ADeviceThatHangsIsNamedInTime) {
  for (const auto* what : {"fit", "evaluate", "predict"}) {
    SCOPED_TRACE(what);
    Strategy strategy({.kind = "mirrored",
                       .replicas = 2,
                       .threads_per_replica = 1,
                       .time_limit = Millis{1500},
                       .device = "cuda:0,1",
                       .seed = 7});
    Model model = small_model(strategy);
    const auto data = three_classes(300).batch(10);
    model.predict(data);
    test::fake_cuda::stick(1, 30);
    const auto hangs = [&] {
      if (what == std::string_view("fit")) model.fit(data, {.verbose = 0});
      if (what == std::string_view("evaluate")) model.evaluate(data);
      if (what == std::string_view("predict")) model.predict(data);
    };
    EXPECT_THAT(test::message_of<Timeout>(hangs), HasSubstr("replica 1 (cuda:1) hangs"));
    test::fake_cuda::reset();
  }
}

TEST_F(FitOnDevices, AnEmptyPartTakesPart) {
  Model model = small_model(strategy_at({"mirrored", 2, "cuda:0,1"}));
  EXPECT_EQ(model.fit(three_classes(5).batch(4), {.verbose = 0}).steps, 2);
  EXPECT_EQ(model.evaluate(three_classes(5).batch(4)).samples, 5);
}

}  // namespace
}  // namespace tutti
