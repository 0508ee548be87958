// What fit() says when something is not finite: the first such tensor, and whose it is.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <limits>

#include "tutti/base/error.h"

#include "tests/support/message_of.h"
#include "tests/support/temp_folder.h"
#include "tests/unit/train/small_model.h"

namespace tutti {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

const char* const kKinds[] = {"one_device", "mirrored"};

data::Dataset with_input(int64_t element, float value) {
  const auto flat = three_classes(30).batch(30).epoch({}).batch(0);
  flat.columns[0].as<float>()[element] = value;
  return data::from_arrays(flat.columns).shuffle({.seed = 3}).batch(10);
}

std::string complaint(Model& model, const data::Dataset& data, int64_t epochs = 2) {
  return test::message_of<Error>([&] { model.fit(data, {.epochs = epochs, .verbose = 0}); });
}

Model module_model(const Strategy& strategy, const Loss& loss,
                   at::Tensor (*last)(const at::Tensor&) = torch::relu) {
  Model model(strategy, [last] {
    return torch::nn::Sequential(torch::nn::Linear(4, 3), torch::nn::Functional(last));
  });
  model.compile({.optimizer = optim::sgd({.learning_rate = 0.1}), .loss = loss});
  return model;
}

TEST(NotFinite, NamesTheSampleOfTheInputByItsPlaceBeforeTheShuffle) {
  for (const auto* kind : kKinds) {
    for (const int64_t sample : {7, 22}) {
      Model model = small_model(strategy_of(kind, 3));
      const float value = sample == 7 ? std::numeric_limits<float>::quiet_NaN()
                                      : std::numeric_limits<float>::infinity();
      EXPECT_THAT(complaint(model, with_input(sample * 4 + 1, value)),
                  AllOf(HasSubstr("epoch 1 of 2, step "),
                        HasSubstr(fmt::format(": input of sample {} of the dataset has {} at "
                                              "element 1",
                                              sample, value))))
          << kind;
    }
  }
}

TEST(NotFinite, NamesTheParameterBeforeTheOutputThatItSpoils) {
  for (const auto* kind : kKinds) {
    Model model = module_model(strategy_of(kind, 2), losses::sparse_categorical_crossentropy());
    {
      const at::NoGradGuard no_grad;
      for (int local = 0; local < 2; ++local)
        model.modules().module(local)->parameters()[1][2].fill_(INFINITY);
    }
    EXPECT_THAT(complaint(model, three_classes(30).batch(10)),
                HasSubstr("replica 0: parameter \"0.bias\" has inf at element 2"))
        << kind;
  }
}

TEST(NotFinite, NamesTheOutputWhenAllBeforeItIsFinite) {
  for (const auto* kind : kKinds) {
    Model model = module_model(
        strategy_of(kind, 2), losses::sparse_categorical_crossentropy(),
        +[](const at::Tensor& x) { return torch::where(x == x.max(), x / 0, x); });
    EXPECT_THAT(complaint(model, three_classes(30).batch(10)),
                AllOf(HasSubstr("step 1 of 3"), HasSubstr("output of sample ")))
        << kind;
  }
}

// The derivative of a root at 0: the loss is finite, the gradient is not.
const Loss& rooted() {
  static const Loss loss(
      "root", [](const at::Tensor& y, const at::Tensor&) { return (y * 0).sqrt().sum(1); });
  return loss;
}

TEST(NotFinite, AGradientOfTheLastStepIsFoundInTheParameters) {
  for (const auto* kind : kKinds) {
    Model model = module_model(strategy_of(kind, 2), rooted());
    EXPECT_THAT(complaint(model, three_classes(10).batch(10), 1),
                AllOf(HasSubstr("after epoch 1 of 1, whose losses were finite, parameter "
                                "\"0.weight\" has nan"),
                      HasSubstr("a gradient of its last step")))
        << kind;
    Model told = module_model(strategy_of(kind, 2), rooted());
    EXPECT_EQ(told.fit(three_classes(10).batch(10), {.verbose = 0, .on_nan = OnNan::go_on}).steps,
              1);
    // Of an earlier step: the next one's loss shows it.
    Model earlier = module_model(strategy_of(kind, 2), rooted());
    EXPECT_THAT(complaint(earlier, three_classes(20).batch(10), 1),
                AllOf(HasSubstr("step 2 of 2"), HasSubstr("parameter \"0.weight\" has nan")));
  }
}

// Of each way in which gradients become an update.
CompileOptions updated_by(const std::string& how) {
  CompileOptions options = adam_and_accuracy();
  if (how == "clipped")
    options.optimizer = optim::Recipe(optim::adam({.learning_rate = 0.01}), {.global_norm = 1});
  if (how == "torch")
    options.optimizer = [](std::vector<at::Tensor> parameters) {
      return std::make_unique<torch::optim::Adam>(parameters, torch::optim::AdamOptions(0.01));
    };
  if (how == "scaled") options.loss_scaling = optim::LossScaling{};
  return options;
}

// Sample 20 is in the third step, and meets one replica alone.
data::Dataset bad_in_its_third_step() {
  const auto flat = three_classes(36).batch(36).epoch({}).batch(0);
  flat.columns[0].as<float>()[20 * 4] = NAN;
  return data::from_arrays(flat.columns).batch(9);
}

TEST(NotFinite, WeightsAreThoseBeforeTheStepAndTrainingCanGoOn) {
  for (const std::string how : {"fused", "clipped", "torch", "all_reduce", "scaled"})
    for (const auto* kind : kKinds)
      for (const int replicas : {1, 2, 3}) {
        const Strategy strategy({.kind = kind,
                                 .replicas = replicas,
                                 .threads_per_replica = 1,
                                 .seed = 7,
                                 .reduction = how == "all_reduce" ? how : "fused"});
        const auto fresh = [&] {
          Model model(strategy, [] { return small_graph(); });
          model.compile(updated_by(how));
          return model;
        };
        Model model = fresh();
        EXPECT_THAT(complaint(model, bad_in_its_third_step()),
                    AllOf(HasSubstr("epoch 1 of 2, step 3 of 4"), HasSubstr("input of sample 20")));
        Model two_steps = fresh();
        const auto good = three_classes(36).batch(9);
        two_steps.fit(good, {.max_steps = 2, .verbose = 0});
        EXPECT_EQ(model.weights_sha256(), two_steps.weights_sha256())
            << kind << " " << how << " " << replicas;
        if (how == "scaled") continue;  // the scale is halved
        for (Model* either : {&model, &two_steps}) either->fit(good, {.verbose = 0});
        EXPECT_EQ(model.weights_sha256(), two_steps.weights_sha256());
      }
}

TEST(NotFinite, MayEndTheTrainingWithTheWeightsBeforeAndItsHistory) {
  for (const auto* kind : kKinds)
    for (const int replicas : {1, 2}) {
      const auto good = three_classes(36).batch(9);
      const FitOptions options{.epochs = 3, .validation = good, .verbose = 0, .on_nan = OnNan::end};
      Model model = small_model(strategy_of(kind, replicas));
      const History history = model.fit(bad_in_its_third_step(), options);
      EXPECT_EQ(history.steps, 2) << kind << replicas;
      EXPECT_EQ(history.rows.size(), 1U);
      EXPECT_TRUE(std::isfinite(history.last("val_loss")));
      Model two_steps = small_model(strategy_of(kind, replicas));
      two_steps.fit(good, {.max_steps = 2, .verbose = 0});
      EXPECT_EQ(model.weights_sha256(), two_steps.weights_sha256()) << kind << replicas;
    }
}

TEST(NotFinite, AnyBatchOfAGroupEndsItBeforeItsUpdate) {
  for (const auto* kind : kKinds) {
    Model model = small_model(strategy_of(kind, 2));
    const std::string before = model.weights_sha256();
    EXPECT_THAT(test::message_of<Error>(
                    [&] { model.fit(bad_in_its_third_step(), {.verbose = 0, .accumulate = 4}); }),
                HasSubstr("step 1 of 1"));
    EXPECT_EQ(model.weights_sha256(), before) << kind;
  }
}

TEST(NotFinite, NoCheckpointOrCallbackSeesTheStep) {
  for (const auto* kind : kKinds) {
    const test::TempFolder folder;
    int64_t seen = 0;
    Model model = small_model(strategy_of(kind, 2));
    EXPECT_THROW(
        model.fit(
            bad_in_its_third_step(),
            {.callbacks = {callbacks::lambda(
                 "sees", {.on_step_end = [&](Training& training) { seen = training.step(); }})},
             .verbose = 0,
             .checkpoints = {.folder = folder / "checkpoints", .every_steps = 1}}),
        Error);
    EXPECT_EQ(seen, 2) << kind;
    Model resumed = small_model(strategy_of(kind, 2));
    resumed.fit(three_classes(36).batch(9), {.max_steps = 2, .verbose = 0});
    EXPECT_EQ(model.weights_sha256(), resumed.weights_sha256()) << kind;
  }
}

TEST(NotFinite, SaysNothingOfLossesThatAreLargeAndFinite) {
  Model model = module_model(
      strategy_of("mirrored", 2),
      Loss("large", [](const at::Tensor& y, const at::Tensor&) { return y.sum(1) * 0 + 3e38F; }));
  EXPECT_EQ(model.fit(three_classes(30).batch(10), {.verbose = 0}).steps, 3);
}

}  // namespace
}  // namespace tutti
