// The gradient norm of a fit: that of plain autograd, in all its columns, gone on from a
// checkpoint.
#include <cmath>
#include <csignal>
#include <functional>
#include <memory>
#include <vector>

#include "tutti/base/stop.h"
#include "tutti/train/model/weight_average.h"

#include "tests/support/expect.h"
#include "tests/support/temp_folder.h"
#include "tests/unit/train/checkpointed.h"

namespace tutti {
namespace {

TEST(GradientNorm, IsThatOfPlainAutograd) {
  const at::Tensor x = torch::randn({30, 4});
  const at::Tensor y = torch::randint(0, 3, {30}, at::kLong);
  torch::nn::Linear plain(4, 3);
  torch::nn::functional::cross_entropy(plain->forward(x), y).backward();
  const double expected = std::sqrt(plain->weight.grad().square().sum().item<double>() +
                                    plain->bias.grad().square().sum().item<double>());
  Model model(strategy_of("mirrored", 2), [&] {
    torch::nn::Linear made(4, 3);
    const at::NoGradGuard no_grad;
    made->weight.copy_(plain->weight);
    made->bias.copy_(plain->bias);
    return made;
  });
  model.compile(
      {.optimizer = optim::Recipe(optim::sgd({.learning_rate = 0.1}), {.global_norm = 1e-3}),
       .loss = losses::sparse_categorical_crossentropy(),
       .measures = {.gradient_norm = true}});
  const History history = model.fit(x, y, {.max_steps = 1, .verbose = 0, .batch = 30});
  EXPECT_NEAR(history.last("gradient_norm"), expected, 1e-5 * expected);
}

TEST(GradientNorm, ChangesNoBitAndGoesOnWithinAnEpoch) {
  const TempFolder folder;
  const auto fit = [&](const Measures& measures, Callbacks callbacks, CheckpointOptions into) {
    Model model(strategy_of("mirrored", 2), [] { return graph_with_state(); });
    CompileOptions how = adam_and_accuracy();
    how.measures = measures;
    model.compile(how);
    FitOptions options = three_epochs(std::move(into));
    options.callbacks = std::move(callbacks);
    const History history = model.fit(samples(), options);
    return std::pair(model.weights_sha256(), history);
  };
  const Measures both{.noise_scale = true, .gradient_norm = true};
  const auto plain = fit({}, {}, {});
  const auto whole = fit(both, {}, {});
  EXPECT_EQ(whole.first, plain.first);
  EXPECT_THROW(fit(both, cut_after(6), {.folder = folder.path(), .every_steps = 1}), Cut);
  const auto resumed = fit(both, {}, {.folder = folder.path(), .every_steps = 1, .resume = true});
  EXPECT_EQ(resumed.first, whole.first);
  const auto norms = whole.second.column("gradient_norm");
  EXPECT_EQ(resumed.second.column("gradient_norm"), norms);
  EXPECT_THAT(norms, Each(::testing::Gt(0)));
}

TEST(GradientNorm, IsRefusedWhereNothingMeasuresIt) {
  Model model(strategy_of("mirrored", 1), [] { return graph_with_state(); });
  CompileOptions how = adam_and_accuracy();
  how.measures = {.gradient_norm = true};
  EXPECT_THAT(message_of<UsageError>([&] { model.compile(how); }),
              HasSubstr("gradient_norm: it is measured where gradients of replicas are added"));
}

// ---- averaged weights ----

Model trained_with(const std::string& kind, int replicas, std::shared_ptr<WeightAverage>& average,
                   FitOptions options, const Callbacks& more = {}) {
  Model model(strategy_of(kind, replicas), [] { return graph_with_state(); });
  model.compile(adam_and_accuracy());
  average = std::make_shared<WeightAverage>(model, WeightAverageOptions{.momentum = 0.75});
  options.callbacks = {average};
  options.callbacks.insert(options.callbacks.end(), more.begin(), more.end());
  model.fit(samples(), options);
  return model;
}

std::string averaged_sha(Model& model, WeightAverage& average) {
  const auto averaged = average.use();
  return model.weights_sha256();
}

TEST(WeightAverage, IsThatOfTheWeightsAfterEachStep) {
  std::vector<double> expected;
  Model* watched = nullptr;
  const auto take = [&](double share) {
    size_t i = 0;
    for (const auto& parameter : watched->modules().module(0)->parameters()) {
      const at::Tensor flat = parameter.detach().flatten().to(torch::kDouble);
      for (int64_t k = 0; k < flat.numel(); ++k, ++i) {
        if (expected.size() <= i) expected.push_back(0);
        expected[i] = (1 - share) * expected[i] + share * flat[k].item<double>();
      }
    }
  };
  Model model(strategy_of("one_device", 2), [] { return graph_with_state(); });
  model.compile(adam_and_accuracy());
  watched = &model;
  const auto average =
      std::make_shared<WeightAverage>(model, WeightAverageOptions{.momentum = 0.75});
  EXPECT_THAT(message_of<UsageError>([&] { (void)average->use(); }), HasSubstr("no training yet"));
  const auto by_hand =
      callbacks::lambda("by hand", {.on_train_begin = [&](Training&) { take(1); },
                                    .on_step_end = [&](Training&) { take(0.25); }});
  FitOptions options = three_epochs({});
  options.callbacks = {average, by_hand};
  model.fit(samples(), options);
  const std::string own = model.weights_sha256();
  EXPECT_EQ(average->steps(), model.optimizer().version());
  {
    const auto averaged = average->use();
    EXPECT_THAT(message_of<UsageError>([&] { (void)average->use(); }), HasSubstr("in use already"));
    size_t i = 0;
    for (int local = 0; local < 2; ++local, i = 0)
      for (const auto& parameter : model.modules().module(local)->parameters()) {
        const at::Tensor flat = parameter.detach().flatten();
        for (int64_t k = 0; k < flat.numel(); ++k, ++i)
          EXPECT_NEAR(flat[k].item<double>(), expected[i], 1e-6);
      }
    EXPECT_NE(model.weights_sha256(), own);
  }
  EXPECT_EQ(model.weights_sha256(), own) << "put back to the bit";
}

TEST(WeightAverage, HasTheBitsOfThePartsInTurnAndGoesOnFromACheckpoint) {
  std::shared_ptr<WeightAverage> average;
  Model turns = trained_with("one_device", 2, average, three_epochs({}));
  const std::string expected = averaged_sha(turns, *average);
  for (const char* kind : {"mirrored", "central_storage"}) {
    Model model = trained_with(kind, 2, average, three_epochs({}));
    EXPECT_EQ(averaged_sha(model, *average), expected) << kind;
    EXPECT_EQ(model.weights_sha256(), turns.weights_sha256()) << "it changes no weight";
  }
  const TempFolder folder;
  CheckpointOptions into{.folder = folder.path(), .every_steps = 1};
  EXPECT_THROW(trained_with("mirrored", 2, average, three_epochs(into), cut_after(5)), Cut);
  into.resume = true;
  Model resumed = trained_with("mirrored", 2, average, three_epochs(into));
  EXPECT_EQ(averaged_sha(resumed, *average), expected);
  EXPECT_EQ(average->steps(), turns.optimizer().version());
  Model without(strategy_of("mirrored", 2), [] { return graph_with_state(); });
  without.compile(adam_and_accuracy());
  EXPECT_THROW(without.fit(samples(), three_epochs(into)), Error) << "a checkpoint with an average";
}

TEST(WeightAverage, IsWhatFitValidates) {
  std::shared_ptr<WeightAverage> average;
  std::string trained;
  for (const bool validates : {true, false}) {
    Model model(strategy_of("mirrored", 2), [] { return graph_with_state(); });
    model.compile(adam_and_accuracy());
    average = std::make_shared<WeightAverage>(
        model, WeightAverageOptions{.momentum = 0.75, .validates = validates});
    FitOptions options = three_epochs({});
    options.validation = samples();
    options.callbacks = {average};
    const History history = model.fit(samples(), options);
    const double plain = model.evaluate(samples()).loss;
    if (validates) trained = model.weights_sha256();
    EXPECT_EQ(model.weights_sha256(), trained) << "what is validated changes no weight";
    const auto averaged = average->use();
    const double of_average = model.evaluate(samples()).loss;
    EXPECT_NE(plain, of_average);
    EXPECT_EQ(history.last("val_loss"), validates ? of_average : plain);
  }
}

TEST(WeightAverage, IsInNoCheckpointOfAnInterruptedValidation) {
  std::shared_ptr<WeightAverage> average;
  Model straight = trained_with("mirrored", 2, average, three_epochs({}));
  const std::string expected = averaged_sha(straight, *average);
  const TempFolder folder;
  CheckpointOptions into{.folder = folder.path()};
  int validated = 0;
  const auto asks = callbacks::lambda("asks", {.on_test_step_begin = [&](const PassFacts&) {
                                        if (++validated == 2) std::raise(SIGTERM);
                                      }});
  install_stop_handler();
  EXPECT_THROW(trained_with("mirrored", 2, average, three_epochs(into), {asks}), Interrupted);
  remove_stop_handler();
  EXPECT_EQ(average->steps(), 8) << "after the second epoch";
  into.resume = true;
  Model resumed = trained_with("mirrored", 2, average, three_epochs(into));
  EXPECT_EQ(resumed.weights_sha256(), straight.weights_sha256());
  EXPECT_EQ(averaged_sha(resumed, *average), expected);
}

TEST(WeightAverage, LeavesTheWeightsOfTheTrainingWhereValidationFails) {
  FitOptions options = three_epochs({});
  options.epochs = 1;
  options.validation.reset();
  std::shared_ptr<WeightAverage> average;
  const std::string expected = trained_with("mirrored", 2, average, options).weights_sha256();
  options.validation = pictures(9).batch(3);
  const auto fails = [](const PassFacts& facts) {
    if (facts.batch >= 1) throw Error("broken");
  };
  const std::vector<callbacks::LambdaOptions> hooks{
      {.on_test_begin = [](const PassFacts&) { throw Error("broken"); }},
      {.on_test_step_end = fails},
      {.on_test_end = fails}};
  for (const auto& hook : hooks)
    for (const bool first : {true, false}) {
      Model model(strategy_of("mirrored", 2), [] { return graph_with_state(); });
      model.compile(adam_and_accuracy());
      average = std::make_shared<WeightAverage>(model, WeightAverageOptions{.momentum = 0.75});
      options.callbacks = {average};
      options.callbacks.insert(first ? options.callbacks.begin() : options.callbacks.end(),
                               callbacks::lambda("breaks", hook));
      EXPECT_THAT(message_of<Error>([&] { model.fit(samples(), options); }), HasSubstr("broken"));
      EXPECT_EQ(model.weights_sha256(), expected);
      EXPECT_NE(averaged_sha(model, *average), expected);
      EXPECT_EQ(model.weights_sha256(), expected);
    }
}

TEST(WeightAverage, IsPutBackWhereAnErrorEndsItsUse) {
  std::shared_ptr<WeightAverage> average;
  Model model = trained_with("mirrored", 2, average, three_epochs({}));
  const std::string own = model.weights_sha256();
  try {
    const auto averaged = average->use();
    EXPECT_NE(model.weights_sha256(), own);
    model.load("/no/such/file");
  } catch (const Error&) {
    EXPECT_EQ(model.weights_sha256(), own);
  }
  EXPECT_NE(averaged_sha(model, *average), own);
}

TEST(WeightAverage, RefusesOtherParametersThanThoseItHas) {
  std::shared_ptr<WeightAverage> average;
  FitOptions options = three_epochs({});
  Model model = trained_with("mirrored", 2, average, options);
  options.callbacks = {average};
  const auto trains = [&](bool yes) {
    for (int local = 0; local < 2; ++local)
      model.modules().module(local)->parameters()[1].set_requires_grad(yes);
    model.compile(adam_and_accuracy());
  };
  trains(false);
  const std::string name = model.modules().module(0)->named_parameters()[1].key();
  for (const auto& calls : {std::function<void()>([&] { model.fit(samples(), options); }),
                            std::function<void()>([&] { (void)average->use(); })})
    EXPECT_THAT(message_of<Error>(calls),
                HasSubstr("parameter \"" + name + "\" is not trained now"));
  EXPECT_EQ(model.optimizer().version(), 0);
  const auto without = std::make_shared<WeightAverage>(model);
  options.callbacks = {without};
  model.fit(samples(), options);
  trains(true);
  EXPECT_THAT(message_of<Error>([&] { model.fit(samples(), options); }),
              HasSubstr("parameter \"" + name + "\" is trained now, and was not"));
}

TEST(WeightAverage, IsOneOfThisModel) {
  Model model(strategy_of("mirrored", 2), [] { return graph_with_state(); });
  Model other(strategy_of("mirrored", 2), [] { return graph_with_state(); });
  model.compile(adam_and_accuracy());
  FitOptions options = three_epochs({});
  options.callbacks = {std::make_shared<WeightAverage>(model),
                       std::make_shared<WeightAverage>(model)};
  EXPECT_THAT(message_of<UsageError>([&] { model.fit(samples(), options); }),
              HasSubstr("weight_average is there twice"));
  options.callbacks = {std::make_shared<WeightAverage>(other)};
  EXPECT_THAT(message_of<UsageError>([&] { model.fit(samples(), options); }),
              HasSubstr("was made for another Model"));
  EXPECT_EQ(model.optimizer().version(), 0);
}

TEST(WeightAverage, IsRefusedWhereNobodyHasTheWeights) {
  Model model(strategy_of("mirrored", 2), [] { return graph_with_state(); });
  for (const double momentum : {-0.1, 1.0, std::nan("")})
    EXPECT_THAT(message_of<UsageError>(
                    [&] { WeightAverage(model, WeightAverageOptions{.momentum = momentum}); }),
                HasSubstr("must be >= 0 and below 1"));
  Model sharded(Strategy({.kind = "mirrored",
                          .replicas = 2,
                          .threads_per_replica = 1,
                          .seed = 7,
                          .shard = "parameters"}),
                [] { return graph_with_state(); });
  sharded.compile(adam_and_accuracy());
  const auto average = std::make_shared<WeightAverage>(sharded);
  FitOptions options = three_epochs({});
  options.callbacks = {average};
  EXPECT_THAT(message_of<UsageError>([&] { sharded.fit(samples(), options); }),
              HasSubstr("no rank has all weights"));
  EXPECT_EQ(sharded.optimizer().version(), 0);
  Model apart(Strategy({.kind = "mirrored",
                        .replicas = 2,
                        .threads_per_replica = 1,
                        .seed = 7,
                        .local = LocalUpdates{.every = 4}}),
              [] { return graph_with_state(); });
  apart.compile(adam_and_accuracy());
  options.callbacks = {std::make_shared<WeightAverage>(apart)};
  EXPECT_THAT(message_of<UsageError>([&] { apart.fit(samples(), options); }),
              HasSubstr("with local updates each replica has weights of its own"));
}

}  // namespace
}  // namespace tutti
