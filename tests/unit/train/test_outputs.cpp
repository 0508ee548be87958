// Models with several inputs and outputs.
#include <functional>

#include "tutti/sync/tensors.h"

#include "tests/support/expect.h"
#include "tests/support/two_outputs.h"
#include "tests/unit/train/small_model.h"

namespace tutti {
namespace {

using Tensors = std::vector<at::Tensor>;

/// The same network as a module of one's own.
struct TwoOutputs : torch::nn::Module {
  TwoOutputs() {
    place_in = register_module("place_in", torch::nn::Linear(4, 8));
    both = register_module("both", torch::nn::Linear(10, 6));
    kind = register_module("kind", torch::nn::Linear(6, 3));
    height = register_module("height", torch::nn::Linear(6, 1));
  }
  Tensors forward(const Tensors& in) {
    const auto x = torch::relu(both(torch::cat({torch::relu(place_in(in.at(0))), in.at(1)}, 1)));
    return {kind(x), height(x)};
  }
  torch::nn::Linear place_in{nullptr}, both{nullptr}, kind{nullptr}, height{nullptr};
};

Tensors columns_of_all(const data::Dataset& data) {
  const auto batch = data.batch(data.num_samples()).epoch({}).batch(0);
  Tensors tensors;
  for (const auto& column : batch.columns) tensors.push_back(tensor_of(column));
  return tensors;
}

/// The weighted sum of both losses, by LibTorch's own functions.
struct ByHand {
  explicit ByHand(const Tensors& outputs, const Tensors& columns, const at::Tensor& weights)
      : kind((torch::cross_entropy_loss(outputs[0], columns[2], {}, at::Reduction::None) * weights)
                 .mean()),
        height(((outputs[1] - columns[3]).pow(2).flatten() * weights).mean()),
        loss(kind + 0.25 * height) {}
  at::Tensor kind, height, loss;
};

TEST(Outputs, StepsAreThoseOfAPlainLoop) {
  for (const bool weighted : {false, true}) {
    const auto data = places(12, weighted);
    const Tensors columns = columns_of_all(data);
    const auto weights = weighted ? columns[4] : torch::ones({12});
    Model model = two_output_model(strategy_of("mirrored", 2));
    TwoOutputs plain;
    detail::copy_values(*model.modules().module(0), plain, kDefaultTimeLimit);
    torch::optim::SGD sgd(plain.parameters(), 0.05);
    for (int step = 0; step < 3; ++step) {
      const History history = model.fit(data.batch(12), {.verbose = 0});
      const ByHand by_hand(plain.forward(columns), columns, weights);
      EXPECT_NEAR(history.last("train_loss"), by_hand.loss.item<double>(), 1e-5);
      EXPECT_NEAR(history.last("kind_loss"), by_hand.kind.item<double>(), 1e-5);
      EXPECT_NEAR(history.last("height_loss"), by_hand.height.item<double>(), 1e-5);
      sgd.zero_grad();
      by_hand.loss.backward();
      sgd.step();
    }
    const auto got = model.modules().module(0)->named_parameters();
    for (const auto& wanted : plain.named_parameters())
      EXPECT_TRUE(torch::allclose(got[wanted.key()], wanted.value(), 1e-5, 1e-6)) << wanted.key();
  }
}

TEST(Outputs, TheSameWeightsUnderEveryStrategyAndAsAModule) {
  const auto data = places(22).shuffle().batch(10);  // 10, 10 and 2, over three replicas
  const auto trained = [&](Model model) {
    const History history = model.fit(data, {.epochs = 2, .verbose = 0, .validation_split = 0.2});
    return model.weights_sha256() + history.to_csv().substr(0, history.to_csv().find('\n'));
  };
  const std::string expected = trained(two_output_model(strategy_of("one_device", 3)));
  EXPECT_THAT(expected, HasSubstr("val_height_mean_absolute_error"));
  for (const char* kind : {"mirrored", "central_storage"})
    EXPECT_EQ(trained(two_output_model(strategy_of(kind, 3))), expected) << kind;
  Model own(strategy_of("mirrored", 3), [] { return std::make_shared<TwoOutputs>(); });
  own.compile({.optimizer = optim::sgd({.learning_rate = 0.05}),
               .outputs = kind_and_height(),
               .num_inputs = 2});
  EXPECT_EQ(trained(own), expected);
}

TEST(Outputs, AreScoredByName) {
  const auto data = places(11);
  const Tensors columns = columns_of_all(data);
  Model model = two_output_model(strategy_of("mirrored", 3));
  const Scores scores = model.evaluate(data.batch(4));
  std::vector<std::string> names;
  for (const auto& [name, value] : scores.metrics) names.push_back(name);
  EXPECT_THAT(names, ElementsAre("kind_loss", "height_loss", "kind_accuracy",
                                 "height_mean_absolute_error"));
  const Tensors outputs = model.predict_all({columns[0], columns[1]});
  const ByHand by_hand(outputs, columns, torch::ones({11}));
  EXPECT_NEAR(scores.loss, by_hand.loss.item<double>(), 1e-6);
  EXPECT_NEAR(scores.at("kind_loss"), by_hand.kind.item<double>(), 1e-6);
  EXPECT_NEAR(scores.at("height_mean_absolute_error"),
              (outputs[1] - columns[3]).abs().mean().item<double>(), 1e-6);
  double counted = 0;
  for (const auto& row : scores.matrix("kind_confusion_matrix"))
    for (const double count : row) counted += count;
  EXPECT_EQ(counted, 11);
  // One sample: two replicas see no outputs of either kind.
  EXPECT_EQ(model.evaluate(places(1).batch(4)).samples, 1);

  const Tensors all = model.predict_all(data.batch(4));
  ASSERT_EQ(all.size(), 2U);
  for (int i : {0, 1}) EXPECT_TRUE(torch::allclose(all[size_t(i)], outputs[size_t(i)], 1e-5, 1e-6));
  const Scores before = model.test_on_batch({columns[0], columns[1]}, {columns[2], columns[3]});
  EXPECT_NEAR(before.loss, scores.loss, 1e-6);
  const Scores step = model.train_on_batch({columns[0], columns[1]}, {columns[2], columns[3]});
  EXPECT_NEAR(step.at("height_loss"), scores.at("height_loss"), 1e-6);
  EXPECT_LT(model.evaluate(data.batch(4)).loss, scores.loss);
}

TEST(Outputs, OneOfThemMayBeTrainedAlone) {
  Model model(strategy_of("mirrored", 2), two_outputs);
  model.compile({.outputs = {{.name = "height", .loss = losses::mean_squared_error()}}});
  const auto before = model.modules().module(0)->named_parameters()["kind.weight"].clone();
  const Tensors columns = columns_of_all(places(8));
  const Scores scores = model.train_on_batch({columns[0], columns[1]}, {columns[3]});
  EXPECT_EQ(scores.loss, scores.at("height_loss"));
  EXPECT_TRUE(torch::equal(model.modules().module(0)->named_parameters()["kind.weight"], before));
}

TEST(Outputs, WhatDoesNotFitIsRefused) {
  const auto strategy = strategy_of("mirrored", 2);
  const auto compile = [&](const CompileOptions& options) {
    Model(strategy, two_outputs).compile(options);
  };
  const Loss mse = losses::mean_squared_error();
  Model model = two_output_model(strategy);
  Model own(strategy, [] { return std::make_shared<TwoOutputs>(); });
  auto three = kind_and_height();
  three.push_back({.name = "depth", .loss = mse});
  own.compile({.outputs = three, .num_inputs = 2});
  Model one = small_model(strategy);
  const struct {
    std::function<void()> call;
    const char* says;
  } cases[] = {
      {[&] { compile({}); }, "there is no loss"},
      {[&] { compile({.loss = mse}); }, "outputs \"kind\", \"height\""},
      {[&] { compile({.loss = mse, .outputs = kind_and_height()}); }, "outputs alone"},
      {[&] { compile({.outputs = {{.name = "kinds", .loss = mse}}}); }, "did you mean \"kind\""},
      {[&] { compile({.outputs = {{.name = "", .loss = mse}}}); }, "no name"},
      {[&] {
         compile({.outputs = {{.name = "kind", .loss = mse}, {.name = "kind", .loss = mse}}});
       },
       "there twice"},
      {[&] { compile({.outputs = {{.name = "kind", .loss = mse, .weight = -1}}}); },
       "weight is -1"},
      {[&] { compile({.outputs = {{.name = "kind", .loss = mse, .weight = 0}}}); }, "weight of 0"},
      {[&] { compile({.outputs = kind_and_height(), .num_inputs = 3}); }, "the graph has 2"},
      {[&] { compile({.outputs = kind_and_height(), .num_inputs = 0}); }, "num_inputs is 0"},
      {[&] { model.fit(three_classes(8).batch(4)); }, "2 of inputs, 2 of targets"},
      {[&] { model.predict(places(8).batch(4)); }, "predict_all"},
      {[&] { model.fit(places(8).batch(4), {.class_weight = {{1, 2}}}); }, "one output"},
      {[&] { model.predict_all({torch::zeros({2, 4})}); }, "got 1 inputs, expected 2"},
      {[&] { own.fit(places(8).batch(4)); }, "expected 2 of inputs, 3 of targets"},
      {[&] { one.predict_all({torch::zeros({2, 4}), torch::zeros({2, 4})}); }, "got 2 inputs"},
  };
  for (const auto& [call, says] : cases) EXPECT_THAT(message_of<UsageError>(call), HasSubstr(says));
  const Tensors columns = columns_of_all(places(8));
  EXPECT_THAT(message_of<UsageError>([&] {
                own.train_on_batch({columns[0], columns[1]}, {columns[2], columns[3], columns[3]});
              }),
              HasSubstr("output \"depth\" is number 3 of what the model's forward gives"));
  Model narrow(strategy, [] { return torch::nn::Sequential(torch::nn::Linear(4, 3)); });
  EXPECT_THAT(message_of<UsageError>(
                  [&] { narrow.predict_all({torch::zeros({2, 4}), torch::zeros({2, 2})}); }),
              HasSubstr("takes one tensor, got 2"));
}

}  // namespace
}  // namespace tutti
