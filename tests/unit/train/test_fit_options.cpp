// What fit() is told: weights, masks, epochs and steps, rates.
#include <torch/torch.h>

#include <cmath>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "tutti/base/log.h"
#include "tutti/data/generator.h"
#include "tutti/nn/lambda.h"
#include "tutti/strategy/input/from_tensors.h"
#include "tutti/sync/tensors.h"

#include "tests/support/expect.h"
#include "tests/unit/train/padded.h"
#include "tests/unit/train/small_model.h"

namespace tutti {
namespace {

// Those of three_classes(), each with a weight.
data::Dataset weighted(int64_t count, const std::function<float(int64_t)>& weight) {
  std::vector<float> x, weights;
  std::vector<int64_t> y;
  for (int64_t i = 0; i < count; ++i) {
    y.push_back(i % 3);
    weights.push_back(weight(i));
    for (int64_t f = 0; f < 4; ++f)
      x.push_back(std::sin(static_cast<float>(i * 4 + f)) * 0.5F + (f == i % 3 ? 1.0F : 0.0F));
  }
  return data::from_arrays({data::array_of(x, {count, 4}), data::array_of(y, {count}),
                            data::array_of(weights, {count})});
}

TEST(Fit, WeighsSamplesAndClasses) {
  for (const char* kind : {"one_device", "mirrored"}) {
    const auto trained = [&](const data::Dataset& data, FitOptions options) {
      Model model = small_model(strategy_of(kind, 3));
      options.verbose = 0;
      const History history = model.fit(data.batch(10), options);
      return fmt::format("{} {}", model.weights_sha256(), history.last("train_loss"));
    };
    const std::string plain = trained(three_classes(20), {});
    EXPECT_EQ(trained(weighted(20, [](int64_t) { return 1.0F; }), {}), plain);
    const std::string by_sample =
        trained(weighted(20, [](int64_t i) { return i % 3 == 1 ? 2.5F : 1.0F; }), {});
    EXPECT_NE(by_sample, plain);
    EXPECT_EQ(trained(three_classes(20), {.class_weight = {{1, 2.5}}}), by_sample);
  }
  // A weight of 0 leaves a sample out; the sum is still divided by all.
  Model model = small_model(strategy_of("one_device", 1));
  const double half =
      model.evaluate(weighted(20, [](int64_t i) { return i < 10 ? 1.0F : 0.0F; }).batch(20)).loss;
  EXPECT_NEAR(half, model.evaluate(three_classes(10).batch(10)).loss / 2, 1e-6);
}

// ---- tensors ----

struct ClassTensors {
  at::Tensor x, y;
};

ClassTensors tensors_of_classes(int64_t count) {
  const auto all = three_classes(count).batch(count).epoch({}).batch(0);
  return {tensor_of(all.columns[0]).clone(), tensor_of(all.columns[1]).clone()};
}

TEST(FitOfTensors, IsThatOfADatasetOfThem) {
  const auto [x, y] = tensors_of_classes(50);
  for (const char* kind : {"one_device", "mirrored"}) {
    const auto sha = [&](const auto& train) {
      Model model = small_model(strategy_of(kind, 3), 0.3);
      train(model);
      return model.weights_sha256();
    };
    const std::string shuffled =
        sha([&](Model& model) { model.fit(x, y, {.epochs = 2, .verbose = 0, .batch = 16}); });
    const std::string as_they_lie = sha([&](Model& model) {
      model.fit(x, y, {.epochs = 2, .verbose = 0, .batch = 16, .shuffle = false});
    });
    const auto samples = data::from_tensors({x, y});
    EXPECT_EQ(shuffled, sha([&](Model& model) {
                model.fit(samples.shuffle().batch(16), {.epochs = 2, .verbose = 0});
              }));
    EXPECT_EQ(as_they_lie, sha([&](Model& model) {
                model.fit(samples.batch(16), {.epochs = 2, .verbose = 0});
              }));
    EXPECT_NE(shuffled, as_they_lie);
    EXPECT_EQ(shuffled, sha([&](Model& model) {
                model.fit(std::vector{x}, {y, torch::ones({50})},
                          {.epochs = 2, .verbose = 0, .batch = 16});
              }))
        << "weights of 1";
  }
}

TEST(FitOfTensors, ValidatesOnTheLastSamplesAsTheyLie) {
  const auto [x, y] = tensors_of_classes(50);
  Model split = small_model(strategy_of("mirrored", 2));
  const History one =
      split.fit(x, y, {.epochs = 2, .verbose = 0, .validation_split = 0.2, .batch = 16});
  Model given = small_model(strategy_of("mirrored", 2));
  const auto last = data::from_tensors({x.narrow(0, 40, 10), y.narrow(0, 40, 10)});
  const History two =
      given.fit(x.narrow(0, 0, 40), y.narrow(0, 0, 40),
                {.epochs = 2, .validation = last.batch(16), .verbose = 0, .batch = 16});
  EXPECT_EQ(split.weights_sha256(), given.weights_sha256());
  EXPECT_EQ(one.last("val_loss"), two.last("val_loss"));
}

TEST(FitOfTensors, EvaluatesAndPredictsWhateverTheBatch) {
  const auto [x, y] = tensors_of_classes(50);
  Model model = small_model(strategy_of("mirrored", 3));
  const auto samples = data::from_tensors({x, y});
  const Scores expected = model.evaluate(samples.batch(50));
  const at::Tensor outputs = model.predict(x);  // one batch, of one replica
  for (const int64_t batch : {1, 7, 64}) {
    const Scores scores = model.evaluate(x, y, {.batch = batch});
    EXPECT_NEAR(scores.loss, expected.loss, 1e-6);
    EXPECT_EQ(scores.at("accuracy"), expected.at("accuracy"));
    EXPECT_EQ(scores.samples, 50);
    EXPECT_TRUE(torch::allclose(model.predict(x, {.batch = batch}), outputs, 1e-5, 1e-6));
    EXPECT_TRUE(torch::equal(model.predict(x, {.batch = batch}),
                             model.predict(data::from_tensors({x}).batch(batch))));
  }
}

TEST(FitOfTensors, RefusesWhatDoesNotFitBeforeAStep) {
  const auto [x, y] = tensors_of_classes(12);
  Model model = small_model(strategy_of("mirrored", 2));
  const std::string before = model.weights_sha256();
  const auto refusal = [&](const at::Tensor& inputs, const at::Tensor& targets,
                           FitOptions options = {}) {
    return message_of<UsageError>([&] { model.fit(inputs, targets, std::move(options)); });
  };
  EXPECT_THAT(refusal(x, y.narrow(0, 0, 11)),
              HasSubstr("fit: targets have 11 samples (their first size), the first of the inputs "
                        "has 12; expected as many"));
  EXPECT_THAT(refusal(x.narrow(0, 0, 0), y.narrow(0, 0, 0)), HasSubstr("inputs have no samples"));
  EXPECT_THAT(refusal(torch::tensor(1.0), y), HasSubstr("[samples, ...] on the CPU, got a scalar"));
  EXPECT_THAT(refusal({}, y), HasSubstr("got an undefined one"));
  EXPECT_THAT(refusal(x.to(torch::kComplexFloat), y), HasSubstr("got ComplexFloat; convert it"));
  EXPECT_THAT(refusal(x.to(torch::kLong), y), HasSubstr("convert to float32"));
  EXPECT_THAT(refusal(x.narrow(1, 0, 3), y), HasSubstr("the dataset's samples have shape"));
  EXPECT_THAT(refusal(x, y, {.batch = 0}), HasSubstr("fit: batch is 0, must be 1 or more"));
  EXPECT_THAT(message_of<UsageError>([&] { model.evaluate(x, y, {.batch = -1}); }),
              HasSubstr("evaluate: batch is -1"));
  EXPECT_THAT(message_of<UsageError>([&] { model.predict(x, {.batch = 0}); }),
              HasSubstr("predict: batch is 0"));
  EXPECT_THAT(message_of<UsageError>([&] { model.evaluate(x, y.narrow(0, 0, 3), {.batch = 4}); }),
              HasSubstr("evaluate: targets have 3 samples"));
  EXPECT_THAT(message_of<UsageError>([&] { model.fit(std::vector<at::Tensor>{}, {y}); }),
              HasSubstr("no inputs were given"));
  EXPECT_EQ(model.weights_sha256(), before);
  EXPECT_EQ(model.optimizer().version(), 0);
}

TEST(Fit, CountsEpochsAndStepsAsTold) {
  const auto data = three_classes(40).shuffle().batch(10);
  Model straight = small_model(strategy_of("mirrored", 2), 0.3);
  straight.fit(data, {.epochs = 3, .verbose = 0});
  Model parts = small_model(strategy_of("mirrored", 2), 0.3);
  parts.fit(data, {.epochs = 1, .verbose = 0});
  parts.fit(data, {.epochs = 3, .verbose = 0, .initial_epoch = 1});
  EXPECT_EQ(parts.weights_sha256(), straight.weights_sha256()) << "order and dropout go on";
  const History rest = parts.fit(data, {.epochs = 5, .verbose = 0, .initial_epoch = 4});
  EXPECT_THAT(rest.to_csv(), HasSubstr("\n5,"));
  Model fewer = small_model(strategy_of("mirrored", 2));
  const History history = fewer.fit(data, {.epochs = 3,
                                           .validation = three_classes(9).batch(9),
                                           .verbose = 0,
                                           .steps_per_epoch = 3,
                                           .validation_freq = 2});
  EXPECT_EQ(history.steps, 9);
  const auto validated = history.column("val_loss");
  EXPECT_TRUE(std::isnan(validated[0]) && std::isfinite(validated[1]) && std::isnan(validated[2]));
}

TEST(Fit, TakesTheRateOfEachStepFromASchedule) {
  std::string asked;
  const auto with_schedule = [&](const char* kind) {
    Model model(strategy_of(kind, 2), [] { return small_graph(); });
    CompileOptions options = adam_and_accuracy();
    options.learning_rate = RateSchedule("mine", [&](int64_t step) {
      asked += fmt::format("{} ", step);
      return 0.1 / static_cast<double>(1 + step);
    });
    model.compile(std::move(options));
    model.fit(three_classes(20).batch(10), {.epochs = 2, .verbose = 0});
    EXPECT_EQ(model.optimizer().learning_rate(), 0.1 / 4);
    EXPECT_EQ(message_of<UsageError>([&] {
                model.fit(three_classes(20).batch(10),
                          {.callbacks = {callbacks::learning_rate_scheduler(
                               [](int64_t, double) { return 0.1; })},
                           .verbose = 0});
              }),
              "callback learning_rate_scheduler: set_learning_rate: compile() has the schedule "
              "\"mine\" for that; leave one of them out");
    return model.weights_sha256();
  };
  EXPECT_EQ(with_schedule("mirrored"), with_schedule("one_device"));
  EXPECT_THAT(asked, StartsWith("0 1 2 3 "));
  // The same by hand.
  Model model = small_model(strategy_of("one_device", 2));
  const auto by_hand = callbacks::lambda(
      "by hand",
      {.on_train_begin = [](Training& t) { t.set_learning_rate(0.1); },
       .on_step_end =
           [](Training& t) { t.set_learning_rate(0.1 / static_cast<double>(1 + t.step())); }});
  model.fit(three_classes(20).batch(10), {.epochs = 2, .callbacks = {by_hand}, .verbose = 0});
  EXPECT_EQ(model.weights_sha256(), with_schedule("one_device"));
}

TEST(Fit, RefusesOptionsThatDoNotFit) {
  Model model = small_model(strategy_of("one_device", 1));
  const auto message = [&](const data::Dataset& data, const FitOptions& options) {
    return message_of<UsageError>([&] { model.fit(data.batch(10), options); });
  };
  const auto data = three_classes(20);
  EXPECT_THAT(message(data, {.initial_epoch = 1}), HasSubstr("initial_epoch is 1, must be below"));
  EXPECT_THAT(message(data, {.steps_per_epoch = 3}), HasSubstr("has 2 batches an epoch"));
  EXPECT_THAT(message(data, {.validation_freq = 0}), HasSubstr("validation_freq is 0"));
  EXPECT_THAT(message(data, {.class_weight = {{2, -1}}}), HasSubstr("label 2 is -1"));
  EXPECT_THAT(message(data, {.class_weight = {{2, 1e-46}}}), HasSubstr("must be 0 or a number"));
  EXPECT_THAT(message(data, {.class_weight = {{0, 0}, {1, 0}, {2, 0}}}),
              HasSubstr("is 0 for all 3 classes: nothing would be learnt"));
  EXPECT_THAT(message(data, {.class_weight = {{17, 2}}}),
              HasSubstr("class_weight has label 17, there are 3 classes (labels 0 to 2)"));
  EXPECT_THAT(message(data, {.class_weight = {{1, 2}, {-1, 2}}}), HasSubstr("has label -1"));
  EXPECT_THAT(message(weighted(20, [](int64_t) { return 1.0F; }), {.class_weight = {{2, 1}}}),
              HasSubstr("give one of them"));
  EXPECT_THAT(message_of<DataError>([&] {
                model.fit(weighted(20, [](int64_t i) { return i == 3 ? -1.0F : 1.0F; }).batch(10),
                          {.verbose = 0});
              }),
              HasSubstr("sample weights: sample 3 of the dataset has -1"));
}

/// Texts of 1 to 4 positions, as they are before padding: logits [?, 3], labels [?].
data::Sample text_of(const Padded& data, int64_t number) {
  const int64_t length = 4 - number % 4;
  return {{array_of(data.logits[number].slice(0, 0, length).contiguous()),
           array_of(data.labels[number].slice(0, 0, length).contiguous())}};
}

TEST(WhatCounts, PaddedBatchesSayItByTheirLabelsOrAMask) {
  const std::vector<data::Column> columns{{"x", DType::float32, {data::kAnySize, 3}},
                                          {"y", DType::int64, {data::kAnySize}}};
  const Padded rows(-100);
  std::vector<int64_t> numbers{0, 1, 2, 3, 4, 5};
  const auto of_arrays =
      data::from_arrays({data::array_of(numbers, {6})})
          .map(
              [&](const data::Sample& sample) {
                return text_of(rows, *static_cast<const int64_t*>(sample.columns[0].data()));
              },
              {.name = "texts", .columns = columns});
  const auto generated = data::from_generator(
      [&](const data::GeneratorContext&) {
        return [&, next = int64_t{0}]() mutable -> std::optional<data::Sample> {
          return text_of(rows, next++);
        };
      },
      {.columns = columns, .num_samples = 6});
  const double expected = rows.loss(torch::ones({3}), -100).item<double>();
  for (const int64_t batch : {2, 6})
    for (const auto& [name, padded] :
         {std::pair{"labels", of_arrays.padded_batch(batch, {.values = {{"y", -100}}})},
          {"mask", of_arrays.padded_batch(batch, {.mask_of = "y"})},
          {"generator", generated.padded_batch(batch, {.values = {{"y", -100}}, .sizes = {4, 4}})},
          {"generator, mask", generated.padded_batch(batch, {.sizes = {5, 5}, .mask_of = "y"})}})
      for (const int replicas : {1, 2}) {
        Model model =
            factors_model("mirrored", replicas, {.ignore_label = -100}, {metrics::accuracy()});
        EXPECT_NEAR(model.evaluate(padded).loss, expected, 1e-6) << name << ", " << batch;
        if (batch < 6) continue;
        Model whole = factors_model("one_device", 1, {.ignore_label = -100});
        whole.fit(rows.batch(6), {.verbose = 0});
        EXPECT_NEAR(model.fit(padded, {.verbose = 0}).last("train_loss"), expected, 1e-6) << name;
        EXPECT_TRUE(torch::allclose(model.modules().module(0)->parameters()[0],
                                    whole.modules().module(0)->parameters()[0], 1e-5, 1e-6));
      }
}

TEST(WhatCounts, RefusalsSayWhatToWrite) {
  const Padded data(-100);
  const auto mask = data.labels.ge(0);
  const auto masked = [&](const at::Tensor& of) {
    return data::from_arrays({array_of(data.logits), array_of(data.labels), array_of(of)}).batch(6);
  };
  Model plain = factors_model("one_device", 1, {});
  const auto refusal = [](Model& model, const data::Dataset& batches) {
    return message_of<Error>([&] { model.fit(batches, {.verbose = 0}); });
  };
  EXPECT_THAT(refusal(plain, masked(mask)),
              AllOf(HasSubstr("the last column is a mask"), HasSubstr(".ignore_label = -100")));
  EXPECT_THAT(refusal(plain, data.batch(6)),
              AllOf(HasSubstr("label -100"), HasSubstr("set .ignore_label of the loss")));
  Model ignoring = factors_model("one_device", 1, {.ignore_label = -100});
  EXPECT_THAT(refusal(ignoring, masked(mask.select(1, 0).contiguous())),
              AllOf(HasSubstr("a mask of []"), HasSubstr("column \"y\" is [4]")));
  const auto floats = data::from_arrays(
      {array_of(data.logits), array_of(data.labels.to(at::kFloat)), array_of(mask)});
  EXPECT_THAT(refusal(ignoring, floats.batch(6)),
              HasSubstr("column \"y\" is float32; expected labels, int64"));
  EXPECT_EQ(ignoring.optimizer().version(), 0);
}

TEST(ClassWeights, OfNothingAndBeyondFloatsAreRefused) {
  EXPECT_THAT(message_of<UsageError>(
                  [] { losses::sparse_categorical_crossentropy({.class_weights = {0, 0, 0}}); }),
              HasSubstr("all 3 class_weights are 0"));
  EXPECT_THAT(message_of<UsageError>(
                  [] { losses::sparse_categorical_crossentropy({.class_weights = {1, 1e39}}); }),
              HasSubstr("class_weights[1] = 1e+39"));
  Model model = small_model(strategy_of("one_device", 1));
  const auto refusal = [&](std::map<int64_t, double> weights) {
    return message_of<UsageError>([&] {
      model.fit(three_classes(6).batch(6), {.verbose = 0, .class_weight = std::move(weights)});
    });
  };
  EXPECT_THAT(refusal({{0, 0}, {1, 0}, {2, 0}}), HasSubstr("class_weight is 0 for all 3 classes"));
  EXPECT_THAT(refusal({{0, 1e39}}), HasSubstr("class_weight of label 0 is 1e+39"));
  EXPECT_THAT(refusal({{0, -1}}), HasSubstr("class_weight of label 0 is -1"));
  EXPECT_THAT(refusal({{0, NAN}}), HasSubstr("class_weight of label 0 is nan"));
}

TEST(Fit, SaysOnceWhyAGraphIsNotPlanned) {
  const auto said_of = [](bool planned) {
    Model model(strategy_of("mirrored", 2), [planned] {
      const auto input = nn::input({4});
      const auto own = nn::lambda("own", {4}, [](at::TensorList in) { return in[0] * 2; });
      return nn::Graph(input, nn::linear(3)(planned ? input : own(input)));
    });
    model.compile(adam_and_accuracy());
    const LogLevel before = log_level();
    set_log_level(LogLevel::info);
    testing::internal::CaptureStderr();
    model.fit(three_classes(20).batch(10), {.epochs = 2, .verbose = 0});
    set_log_level(before);
    return testing::internal::GetCapturedStderr();
  };
  const std::string words = "run by autograd, not as one planned step: lambda \"";
  const std::string said = said_of(false);
  const size_t at = said.find(words);
  ASSERT_NE(at, std::string::npos) << said;
  EXPECT_EQ(said.find(words, at + 1), std::string::npos) << said;
  EXPECT_EQ(said_of(true).find("run by autograd"), std::string::npos);
}

}  // namespace
}  // namespace tutti
