// Model under the strategies of one process.
#include <torch/torch.h>

#include <atomic>
#include <cmath>
#include <csignal>

#include "tutti/base/stop.h"
#include "tutti/nn/graph.h"
#include "tutti/train/model/model.h"

#include "tests/support/expect.h"
#include "tests/unit/train/small_model.h"

namespace tutti {
namespace {

// The linear regression of the tf.distribute guide: one unit, all data (1, 1), SGD 0.01. With
// e = w + b - 1, a step gives e' = e (1 - 0.04), and its loss is e^2.
TEST(Model, LinearRegressionGivesTheClosedForm) {
  const auto ones = [] {
    return data::from_arrays({data::array_of(std::vector<float>(100, 1.0F), {100, 1}),
                              data::array_of(std::vector<float>(100, 1.0F), {100, 1})})
        .batch(10);
  };
  for (const auto& [kind, replicas] : {std::pair{"one_device", 1}, std::pair{"one_device", 2},
                                       std::pair{"mirrored", 2}, std::pair{"mirrored", 3}}) {
    Model model(strategy_of(kind, replicas), [] {
      const auto input = nn::input({1});
      return nn::Graph(input, nn::linear(1)(input));
    });
    model.compile(
        {.optimizer = optim::sgd({.learning_rate = 0.01}), .loss = losses::mean_squared_error()});
    double error = model.predict(torch::ones({1, 1})).item<double>() - 1.0;
    const History history = model.fit(ones(), {.epochs = 2, .verbose = 0});
    for (double loss : history.column("train_loss")) {
      double expected = 0;
      for (int step = 0; step < 10; ++step) {
        expected += error * error / 10;
        error *= 1 - 0.04;
      }
      EXPECT_NEAR(loss, expected, 1e-6) << kind << " " << replicas;
    }
  }
}

TEST(Model, ThreadsGiveTheBitsOfTheSamePartsInTurn) {
  for (int replicas : {2, 3}) {
    std::vector<std::string> fingerprints;
    std::vector<std::vector<double>> losses;
    for (const auto* kind : {"one_device", "mirrored", "mirrored"}) {
      Model model = small_model(strategy_of(kind, replicas), 0.25);
      // 29 samples in batches of 7: the last one has a single sample.
      const History history =
          model.fit(three_classes(29).shuffle().batch(7), {.epochs = 3, .verbose = 0});
      fingerprints.push_back(model.weights_sha256());
      losses.push_back(history.column("train_loss"));
    }
    EXPECT_THAT(fingerprints, Each(fingerprints[0])) << replicas;
    EXPECT_THAT(losses, Each(losses[0])) << replicas;
  }
}

TEST(Model, AnyNumberOfReplicasLearnsTheSame) {
  std::vector<double> losses;
  for (int replicas : {1, 2, 5}) {
    Model model = small_model(strategy_of("one_device", replicas), 0.25);
    const auto history =
        model.fit(three_classes(29).shuffle().batch(7), {.epochs = 3, .verbose = 0});
    losses.push_back(history.last("train_loss"));
    EXPECT_EQ(history.steps, 15);
    EXPECT_EQ(history.images, 87);
    EXPECT_EQ(history.step_ms.size(), 15U);
  }
  EXPECT_NEAR(losses[1], losses[0], 1e-4 * losses[0]);
  EXPECT_NEAR(losses[2], losses[0], 1e-4 * losses[0]);
}

TEST(Model, OneStepIsThatOfPlainLibTorch) {
  const auto data = three_classes(12);
  Model model = small_model(strategy_of("mirrored", 2));
  auto plain = std::dynamic_pointer_cast<nn::GraphModule>(model.modules().module(0)->clone());
  torch::optim::Adam adam(plain->parameters(), torch::optim::AdamOptions(0.01));
  const auto batch = data.batch(12).epoch({}).batch(0);
  const auto x = torch::from_blob(batch.columns[0].data(), {12, 4}).clone();
  const auto y = torch::from_blob(batch.columns[1].data(), {12}, torch::kInt64).clone();
  torch::cross_entropy_loss(plain->forward(x), y).backward();
  adam.step();
  model.fit(data.batch(12), {.verbose = 0});
  const auto got = model.modules().module(1)->named_parameters();
  for (const auto& parameter : plain->named_parameters()) {
    EXPECT_TRUE(torch::allclose(got[parameter.key()], parameter.value(), 1e-5, 1e-7))
        << parameter.key();
  }
}

TEST(Model, EvaluateIsExactWithPartialAndEmptyParts) {
  const auto data = three_classes(7).batch(2);  // parts of 1, 1, 0; the last batch of 1, 0, 0
  Model model = small_model(strategy_of("mirrored", 3));
  const Scores scores = model.evaluate(data);
  const auto all = three_classes(7).batch(7).epoch({}).batch(0);
  const auto x = torch::from_blob(all.columns[0].data(), {7, 4}).clone();
  const auto y = torch::from_blob(all.columns[1].data(), {7}, torch::kInt64).clone();
  const auto logits = model.predict(x);
  EXPECT_NEAR(scores.loss, torch::cross_entropy_loss(logits, y).item<double>(), 1e-6);
  EXPECT_DOUBLE_EQ(scores.at("accuracy"), (logits.argmax(1) == y).sum().item<double>() / 7);
  EXPECT_EQ(scores.samples, 7);
  EXPECT_THAT(message_of<Error>([&] { scores.at("acuracy"); }),
              HasSubstr("did you mean \"accuracy\""));
  EXPECT_TRUE(torch::allclose(model.predict(data), logits, 1e-6, 1e-7));
  EXPECT_TRUE(
      torch::allclose(small_model(strategy_of("one_device", 3)).predict(data), logits, 1e-6, 1e-7));
}

std::vector<Metric> many_metrics() {
  return {metrics::accuracy(), metrics::f1(), metrics::confusion_matrix(), metrics::map_at_k(2),
          Metric("labels", [](const SampleRows& rows, MetricSum& into) {
            for (int64_t row = 0; row < rows.rows; ++row)
              into.sum += static_cast<double>(rows.labels[row]);
            into.count += static_cast<double>(rows.rows);
          })};
}

TEST(Model, MetricsAreThoseOfOneDeviceWithAnyReplicas) {
  // Batches of 4, 4 and 2 over 3 replicas; then one sample, which one replica has: the others do
  // not know how wide outputs are. A module says that nowhere but in its outputs.
  for (const int64_t count : {10, 1}) {
    const auto scores_of = [&](const char* kind, int replicas) {
      Model model(strategy_of(kind, replicas), [] { return torch::nn::Linear(4, 3); });
      CompileOptions options = adam_and_accuracy();
      options.metrics = many_metrics();
      model.compile(options);
      return model.evaluate(three_classes(count).batch(4));
    };
    const Scores one = scores_of("one_device", 1);
    EXPECT_EQ(one.metrics.size(), 4U);
    double all = 0;
    for (const auto& row : one.matrix("confusion_matrix")) all += row[0] + row[1] + row[2];
    EXPECT_EQ(all, static_cast<double>(count));
    EXPECT_EQ(one.at("labels"), count == 1 ? 0 : 0.9);
    EXPECT_THAT(message_of<UsageError>([&] { (void)one.matrix("accuracy"); }),
                HasSubstr("confusion_matrix"));
    for (const auto& other : {scores_of("mirrored", 3), scores_of("one_device", 3)}) {
      EXPECT_EQ(other.metrics, one.metrics);
      EXPECT_EQ(other.matrices, one.matrices);
    }
  }
}

TEST(Model, FitShowsMetricsThatAreOneNumber) {
  std::vector<std::vector<double>> f1;
  for (int replicas : {1, 3}) {
    Model model = small_model(strategy_of("mirrored", replicas));
    CompileOptions options = adam_and_accuracy();
    options.optimizer = optim::sgd({.learning_rate = 1e-9});  // weights as good as unchanged
    options.metrics = {metrics::confusion_matrix(), metrics::f1()};
    model.compile(options);
    const auto data = three_classes(10).batch(4);
    const History history = model.fit(data, {.epochs = 2, .validation = data, .verbose = 0});
    EXPECT_THAT(history.columns, ElementsAre("train_loss", "f1", "val_loss", "val_f1", "seconds",
                                             "images_per_second"));
    EXPECT_EQ(history.last("f1"), model.evaluate(data).at("f1"));
    f1.push_back(history.column("f1"));
  }
  EXPECT_EQ(f1[0], f1[1]);
}

TEST(Model, RegressionHasItsMetrics) {
  for (int replicas : {1, 2, 3}) {
    Model model(strategy_of("mirrored", replicas), [] { return torch::nn::Linear(1, 1); });
    model.compile({.optimizer = optim::sgd(),
                   .loss = losses::mean_squared_error(),
                   .metrics = {metrics::mean_squared_error(), metrics::r2_score()}});
    std::vector<float> x;
    for (int i = 0; i < 10; ++i) x.push_back(static_cast<float>(i));
    const Scores scores = model.evaluate(
        data::from_arrays({data::array_of(x, {10, 1}), data::array_of(x, {10, 1})}).batch(4));
    EXPECT_NEAR(scores.at("mean_squared_error"), scores.loss, 1e-6 * scores.loss);
    EXPECT_NEAR(scores.at("r2_score"), 1 - scores.loss / 8.25, 1e-6);
  }
}

TEST(Model, MetricsNeedTheirTargets) {
  Model model = small_model(strategy_of("mirrored", 2));
  CompileOptions options = adam_and_accuracy();
  options.metrics = {metrics::binary_accuracy()};
  model.compile(options);
  EXPECT_THAT(message_of<Error>([&] { model.evaluate(three_classes(6).batch(6)); }),
              HasSubstr("metric binary_accuracy: needs 1 output a sample, the model gives 3"));
}

TEST(Model, HistoryHasOneRowAnEpoch) {
  Model model = small_model(strategy_of("one_device", 1));
  const auto data = three_classes(30).shuffle().batch(10);
  const History history =
      model.fit(data, {.epochs = 4, .validation = three_classes(9).batch(9), .verbose = 0});
  EXPECT_THAT(history.columns,
              ElementsAre("train_loss", "accuracy", "top_2_accuracy", "val_loss", "val_accuracy",
                          "val_top_2_accuracy", "seconds", "images_per_second"));
  ASSERT_EQ(history.rows.size(), 4U);
  EXPECT_LT(history.last("train_loss"), history.column("train_loss")[0]);
  EXPECT_DOUBLE_EQ(history.last("val_loss"), model.evaluate(three_classes(9).batch(9)).loss);
  EXPECT_GT(history.train_seconds, 0);
}

TEST(Model, MaxStepsEndsInTheMiddleOfAnEpoch) {
  Model model = small_model(strategy_of("mirrored", 2));
  const auto history =
      model.fit(three_classes(30).batch(10), {.epochs = 9, .max_steps = 4, .verbose = 0});
  EXPECT_EQ(history.steps, 4);
  EXPECT_EQ(history.rows.size(), 2U);
  EXPECT_EQ(history.images, 40);
  EXPECT_EQ(model.optimizer().version(), 4);
}

TEST(Model, TheSeedOfFitDecidesTheOrder) {
  const auto run = [](std::optional<uint64_t> seed) {
    Model model = small_model(strategy_of("one_device", 1));
    model.fit(three_classes(30).shuffle().batch(10), {.seed = seed, .verbose = 0});
    return model.weights_sha256();
  };
  EXPECT_EQ(run(3), run(3));
  EXPECT_NE(run(3), run(4));
  EXPECT_EQ(run(std::nullopt), run(7));
}

struct Net : torch::nn::Module {
  Net() { dense = register_module("dense", torch::nn::Linear(4, 3)); }
  at::Tensor forward(const at::Tensor& x) { return dense(x); }
  torch::nn::Linear dense{nullptr};
};

TEST(Model, TakesEveryKindOfModule) {
  const auto fingerprint = [](auto factory) {
    Model model(strategy_of("mirrored", 2), factory);
    model.compile(adam_and_accuracy());
    model.fit(three_classes(12).batch(6), {.verbose = 0});
    EXPECT_THAT(model.summary(), HasSubstr("Linear(in_features=4, out_features=3, bias=true)"));
    return model.modules().module(0)->parameters()[0].sum().item<double>();
  };
  const double by_holder = fingerprint([] { return torch::nn::Linear(4, 3); });
  EXPECT_EQ(fingerprint([] { return torch::nn::Sequential(torch::nn::Linear(4, 3)); }), by_holder);
  EXPECT_EQ(fingerprint([] { return std::make_shared<Net>(); }), by_holder);
  EXPECT_EQ(fingerprint([] { return Net(); }), by_holder);
}

TEST(Model, AnyTorchOptimizerTrains) {
  Model ours = small_model(strategy_of("mirrored", 2));
  Model theirs = small_model(strategy_of("mirrored", 2));
  CompileOptions options = adam_and_accuracy();
  options.optimizer = TorchOptimizerFactory([](std::vector<at::Tensor> parameters) {
    return std::make_unique<torch::optim::Adam>(std::move(parameters),
                                                torch::optim::AdamOptions(0.01));
  });
  theirs.compile(options);
  const auto data = three_classes(30).shuffle().batch(10);
  EXPECT_NEAR(ours.fit(data, {.verbose = 0}).last("train_loss"),
              theirs.fit(data, {.verbose = 0}).last("train_loss"), 1e-6);
}

TEST(Model, StopsWhenTheLossIsNotFinite) {
  for (const auto* kind : {"one_device", "mirrored"}) {
    for (const auto on_nan : {OnNan::stop, OnNan::go_on}) {
      Model model(strategy_of(kind, 2), [] { return small_graph(); });
      // Sample 13 is met by one replica alone, in the second step of the first epoch.
      const Loss loss("breaks", [](const at::Tensor& y, const at::Tensor& labels) {
        const auto each =
            torch::cross_entropy_loss(y, labels.clamp_max(2), {}, at::Reduction::None);
        return each + torch::where(labels == 3, std::nan(""), 0.0);
      });
      model.compile({.optimizer = optim::sgd(), .loss = loss});
      const auto flat = three_classes(30).batch(30).epoch({}).batch(0);
      flat.columns[1].as<int64_t>()[13] = 3;
      const auto data = data::from_arrays(flat.columns).batch(10);
      const FitOptions options{.epochs = 2, .verbose = 0, .on_nan = on_nan};
      if (on_nan == OnNan::go_on) {
        EXPECT_TRUE(std::isnan(model.fit(data, options).last("train_loss")));
        continue;
      }
      const auto message = message_of<Error>([&] { model.fit(data, options); });
      EXPECT_THAT(message, HasSubstr("epoch 1 of 2, step 2 of 3")) << kind;
      EXPECT_THAT(message, HasSubstr(": loss of sample 13 of the dataset has nan"));
      EXPECT_EQ(model.optimizer().version(), 1);
    }
  }
}

TEST(Model, EndsAfterTheRunningStepWhenAskedTo) {
  install_stop_handler();
  for (const auto* kind : {"one_device", "mirrored"}) {
    std::atomic<int> calls{0};
    Model model(strategy_of(kind, 2), [] { return small_graph(); });
    const Loss loss("asks", [&calls](const at::Tensor& y, const at::Tensor& labels) {
      if (++calls == 5) std::raise(SIGTERM);  // in the third step: two replicas, one call each
      return torch::cross_entropy_loss(y, labels, {}, at::Reduction::None);
    });
    model.compile({.optimizer = optim::sgd(), .loss = loss});
    try {
      model.fit(three_classes(60).batch(10), {.verbose = 0});
      ADD_FAILURE() << "not interrupted";
    } catch (const Interrupted& interrupted) {
      EXPECT_EQ(interrupted.signal(), SIGTERM);
      EXPECT_THAT(interrupted.what(), HasSubstr("SIGTERM"));
    }
    EXPECT_EQ(model.optimizer().version(), 3);
    EXPECT_THROW(model.evaluate(three_classes(6).batch(6)), Interrupted);
    remove_stop_handler();
    install_stop_handler();
  }
  remove_stop_handler();
}

// Signals go with the update; a callback decides once the step is made, which costs a meeting.
TEST(Model, MeetsAfterAStepOnlyWhereACallbackMayDecide) {
  for (const bool calls_back : {false, true}) {
    Model model = small_model(strategy_of("mirrored", 3));
    Callbacks callbacks;
    if (calls_back) callbacks.push_back(callbacks::lambda("nothing", {}));
    model.fit(three_classes(60).batch(10), {.callbacks = callbacks, .verbose = 0});
    model.strategy().run([&](ReplicaContext& replica) {
      EXPECT_EQ(model.optimizer().verdict(replica).meets, calls_back);
    });
  }
}

TEST(Model, AnErrorInOneReplicaIsThrownOnce) {
  Model model = small_model(strategy_of("mirrored", 2));
  const auto flat = three_classes(12).batch(12).epoch({}).batch(0);
  flat.columns[1].as<int64_t>()[11] = 5;
  EXPECT_THAT(message_of<Error>(
                  [&] { model.fit(data::from_arrays(flat.columns).batch(12), {.verbose = 0}); }),
              HasSubstr("label 5"));
}

/// Samples of three classes as images of one pixel in four channels, and a model with a batch norm
/// over them: in training, it needs two samples.
Model one_pixel_model(const StrategyOptions& options) {
  Model model(Strategy(options), [] {
    const auto input = nn::input({4, 1, 1});
    return nn::Graph(input, nn::linear(3)(nn::flatten()(nn::batch_norm2d().named("bn")(input))));
  });
  model.compile(adam_and_accuracy());
  return model;
}

data::Dataset one_pixel_images(int64_t count) {
  const auto flat = three_classes(count).batch(count).epoch({}).batch(0);
  return data::from_arrays({Array::view(flat.columns[0].data(), DType::float32, {count, 4, 1, 1},
                                        flat.columns[0].owner()),
                            flat.columns[1]});
}

TEST(Model, ABatchNormOfOneValueIsRefusedBeforeTheFirstStep) {
  Model one = one_pixel_model({.kind = "one_device", .threads_per_replica = 1});
  EXPECT_THAT(
      message_of<UsageError>([&] { one.fit(one_pixel_images(13).batch(6), {.verbose = 0}); }),
      AllOf(HasSubstr("\"bn\""), HasSubstr("1 sample of the last batch of 1"),
            HasSubstr("batch size of 7")));
  EXPECT_EQ(one.optimizer().version(), 0);
  // The last batch is not met; there is none of one sample.
  EXPECT_EQ(one.fit(one_pixel_images(13).batch(6), {.max_steps = 2, .verbose = 0}).steps, 2);
  EXPECT_EQ(one.fit(one_pixel_images(13).batch(5), {.verbose = 0}).steps, 3);
  EXPECT_EQ(one.evaluate(one_pixel_images(13).batch(6)).samples, 13);

  Model two = one_pixel_model({.kind = "mirrored", .replicas = 2, .threads_per_replica = 1});
  EXPECT_THAT(
      message_of<UsageError>([&] { two.fit(one_pixel_images(12).batch(3), {.verbose = 0}); }),
      AllOf(HasSubstr("replica 1 of 2"), HasSubstr("batches of 3"), HasSubstr("batch size of 4")));
  EXPECT_THAT(
      message_of<UsageError>([&] { two.fit(one_pixel_images(3).batch(3), {.verbose = 0}); }),
      HasSubstr("no batch size"));
  EXPECT_EQ(two.fit(one_pixel_images(12).batch(4), {.verbose = 0}).steps, 3);
}

// Each replica has its own numbers, whatever it is made of.
TEST(Model, DropoutOfLibTorchTrainsAsThreadsAndInTurn) {
  const auto trained = [](const std::string& kind, int replicas) {
    Model model(strategy_of(kind, replicas), [] {
      return torch::nn::Sequential(torch::nn::Linear(4, 8), torch::nn::Dropout(0.5),
                                   torch::nn::Linear(8, 3));
    });
    model.compile(adam_and_accuracy());
    model.fit(three_classes(24).batch(6), {.epochs = 2, .verbose = 0});
    return model.weights_sha256();
  };
  EXPECT_EQ(trained("mirrored", 2), trained("one_device", 2));
  EXPECT_EQ(trained("central_storage", 3), trained("one_device", 3));
}

TEST(Model, EvaluationLeavesEveryModuleInTheModeItWasIn) {
  Model model(strategy_of("mirrored", 2), [] {
    return torch::nn::Sequential(torch::nn::Linear(4, 3), torch::nn::Dropout(0.5));
  });
  model.compile(adam_and_accuracy());
  const auto modes = [&] {
    std::vector<bool> modes;
    for (int local = 0; local < 2; ++local)
      for (const auto& module : model.modules().module(local)->modules())
        modes.push_back(module->is_training());
    return modes;
  };
  model.modules().module(0)->eval();
  model.modules().module(1)->children().at(1)->eval();
  const auto before = modes();
  EXPECT_THAT(before, ElementsAre(false, false, false, true, true, false));
  const auto data = three_classes(6).batch(6);
  model.predict(torch::ones({2, 4}));
  EXPECT_EQ(modes(), before);
  model.predict(data);
  EXPECT_EQ(modes(), before);
  model.evaluate(data);
  EXPECT_EQ(modes(), before);
}

TEST(Model, WrongUseIsFoundBeforeTheFirstStep) {
  const auto good = three_classes(12).batch(6);
  Model fresh(strategy_of("mirrored", 2), [] { return small_graph(); });
  EXPECT_THAT(message_of<Error>([&] { fresh.fit(good); }), HasSubstr("call compile() first"));
  EXPECT_THAT(message_of<Error>([&] { fresh.evaluate(good); }), HasSubstr("call compile() first"));
  EXPECT_THAT(message_of<Error>([&] { fresh.optimizer(); }), HasSubstr("call compile() first"));

  Model model = small_model(strategy_of("mirrored", 2));
  const auto fit = [&](const data::Dataset& data, FitOptions options = {}) {
    return message_of<Error>([&] { model.fit(data, options); });
  };
  EXPECT_THAT(fit(three_classes(12)), HasSubstr("call batch(n) last"));
  EXPECT_THAT(fit(three_classes(12).take(0).batch(6)), HasSubstr("no samples"));
  EXPECT_THAT(fit(good, {.epochs = 0}), HasSubstr("epochs is 0"));
  EXPECT_THAT(fit(good, {.max_steps = -1}), HasSubstr("max_steps is -1"));
  EXPECT_THAT(fit(good, {.verbose = 3}), HasSubstr("verbose is 3"));
  EXPECT_THAT(message_of<UsageError>([&] { model.evaluate(good, {}, 2); }),
              HasSubstr("evaluate: verbose is 2, must be 0 or 1"));
  EXPECT_THAT(fit(good, {.validation = three_classes(3)}), HasSubstr("validation"));
  const auto wide = data::from_arrays({data::array_of(std::vector<float>(20), {4, 5}),
                                       data::array_of(std::vector<int64_t>(4), {4})});
  EXPECT_THAT(fit(wide.batch(4)), HasSubstr("have shape [5], the model takes [4]"));
  const auto lonely = data::from_arrays({data::array_of(std::vector<float>(20), {5, 4})});
  EXPECT_THAT(fit(lonely.batch(5)), HasSubstr("1 columns"));
  EXPECT_EQ(model.optimizer().version(), 0);
}

}  // namespace
}  // namespace tutti
