// Models with several inputs and outputs.
#include <functional>

#include "tutti/sync/tensors.h"
#include "tutti/train/model/added_losses.h"

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
      {[&] { compile({.test_step = [](const StepData&) { return StepOutcome{}; }}); },
       "there is test_step alone"},
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

// ---- steps of one's own ----

/// Two forward passes, whose outputs are to be alike: what no loss of outputs and targets can say.
StepOutcome alike_under_scaling(const StepData& data) {
  const at::Tensor y = data.forward(data.inputs)[0];
  const at::Tensor again = data.forward({data.inputs[0] * 0.5})[0];
  const at::Tensor each = torch::cross_entropy_loss(y, data.targets[0], {}, at::Reduction::None) +
                          0.3 * (y - again).square().mean(1);
  return {.losses = each, .outputs = {y}};
}

Model model_of_steps(const Strategy& strategy, OwnStep train, OwnStep test = {}) {
  Model model(strategy, [] { return small_graph(); });
  model.compile({.optimizer = optim::sgd({.learning_rate = 0.1}),
                 .metrics = {metrics::accuracy()},
                 .train_step = std::move(train),
                 .test_step = std::move(test)});
  return model;
}

TEST(OwnSteps, TrainAsALoopOfPlainLibTorch) {
  const auto data = three_classes(25).batch(10);
  Model model =
      model_of_steps(strategy_of("mirrored", 3), alike_under_scaling, alike_under_scaling);
  // A copy of what it begins with, trained by hand on whole batches.
  std::vector<at::Tensor> p;
  for (const auto& one : model.modules().module(0)->parameters())
    p.push_back(one.detach().clone().requires_grad_());
  torch::optim::SGD sgd(p, 0.1);
  const auto forward = [&](const at::Tensor& x) {
    return torch::linear(torch::relu(torch::linear(x, p[0], p[1])), p[2], p[3]);
  };
  double expected = 0;
  for (int epoch = 0; epoch < 2; ++epoch) {
    expected = 0;
    for (int64_t step = 0; step < 3; ++step) {
      const auto columns = data.epoch({}).batch(step).columns;
      const at::Tensor x = tensor_of(columns[0]), t = tensor_of(columns[1]);
      const at::Tensor y = forward(x);
      const at::Tensor each = torch::cross_entropy_loss(y, t, {}, at::Reduction::None) +
                              0.3 * (y - forward(x * 0.5)).square().mean(1);
      sgd.zero_grad();
      each.mean().backward();
      sgd.step();
      expected += each.sum().item<double>() / 25;
    }
  }
  const History history = model.fit(data, {.epochs = 2, .verbose = 0});
  EXPECT_NEAR(history.last("train_loss"), expected, 1e-5);
  for (size_t i = 0; i < p.size(); ++i)
    EXPECT_TRUE(torch::allclose(model.modules().module(0)->parameters()[i], p[i], 1e-4, 1e-5));
  EXPECT_GT(history.last("accuracy"), 0);
  double tested = 0;
  const at::NoGradGuard no_grad;
  for (int64_t step = 0; step < 3; ++step) {
    const auto columns = data.epoch({}).batch(step).columns;
    const at::Tensor x = tensor_of(columns[0]), y = forward(x);
    tested += (torch::cross_entropy_loss(y, tensor_of(columns[1]), {}, at::Reduction::None) +
               0.3 * (y - forward(x * 0.5)).square().mean(1))
                  .sum()
                  .item<double>() /
              25;
  }
  EXPECT_NEAR(model.evaluate(data).loss, tested, 1e-5);
}

TEST(OwnSteps, HaveTheBitsOfThePartsInTurn) {
  const auto story = [](const char* kind, FitOptions options) {
    Model model = model_of_steps(strategy_of(kind, 3), alike_under_scaling, alike_under_scaling);
    options.verbose = 0;
    options.epochs = 2;
    options.validation = three_classes(7).batch(4);
    const History history = model.fit(three_classes(25).batch(10), options);
    return fmt::format("{} {} {}", model.weights_sha256(), history.last("train_loss"),
                       history.last("val_loss"));
  };
  EXPECT_EQ(story("mirrored", {}), story("one_device", {}));
  EXPECT_EQ(story("mirrored", {.accumulate = 2}), story("one_device", {.accumulate = 2}));
  EXPECT_EQ(story("mirrored", {.class_weight = {{1, 2.5}}}),
            story("one_device", {.class_weight = {{1, 2.5}}}));
  EXPECT_NE(story("mirrored", {}), story("mirrored", {.class_weight = {{1, 2.5}}}));
}

TEST(OwnSteps, WhatTheyCannotGiveIsRefused) {
  const auto trained = [](OwnStep step, FitOptions options = {}) {
    return message_of<UsageError>([&] {
      Model model = model_of_steps(strategy_of("mirrored", 2), std::move(step));
      options.verbose = 0;
      model.fit(three_classes(8).batch(4), options);
    });
  };
  const auto forward = [](const StepData& data) { return data.forward(data.inputs)[0]; };
  EXPECT_THAT(trained([&](const StepData& data) {
                return StepOutcome{.losses = forward(data).mean(), .outputs = {forward(data)}};
              }),
              HasSubstr("a step of one's own gave losses Float [], expected floats [2]"));
  EXPECT_THAT(
      trained([&](const StepData& data) { return StepOutcome{.losses = forward(data).mean(1)}; }),
      HasSubstr("gave no outputs, of which metric accuracy is computed"));
  const auto with_outputs = [&](const std::function<std::vector<at::Tensor>(at::Tensor)>& outputs) {
    return trained([&](const StepData& data) {
      return StepOutcome{.losses = forward(data).mean(1), .outputs = outputs(forward(data))};
    });
  };
  EXPECT_THAT(with_outputs([](at::Tensor) { return std::vector{at::Tensor()}; }),
              HasSubstr("gave an undefined output, expected outputs of one tensor [2, ...]"));
  EXPECT_THAT(with_outputs([](at::Tensor y) { return std::vector{y.narrow(0, 0, 1)}; }),
              HasSubstr("gave outputs [1, 3], expected outputs of one tensor [2, ...]"));
  EXPECT_THAT(with_outputs([](at::Tensor y) { return std::vector{y, y}; }),
              HasSubstr("gave 2 outputs"));
  EXPECT_THAT(trained([&](const StepData& data) {
                return StepOutcome{.losses = forward(data).detach().mean(1),
                                   .outputs = {forward(data)}};
              }),
              HasSubstr("does not depend on"));
  EXPECT_THAT(trained(alike_under_scaling, {.validation = three_classes(4).batch(4)}),
              HasSubstr("fit, validation: compile() was given train_step, and neither"));
  EXPECT_THAT(trained(alike_under_scaling, {.microbatches = 2}), HasSubstr("microbatches is 2"));
  Model model(strategy_of("one_device", 1), [] { return small_graph(); });
  EXPECT_THAT(message_of<UsageError>([&] {
                model.compile({.loss = losses::sparse_categorical_crossentropy({.ignore_label = 2}),
                               .train_step = alike_under_scaling});
              }),
              HasSubstr("leaves labels out"));
  EXPECT_THAT(message_of<UsageError>([&] {
                model.compile({.outputs = {{.name = "output",
                                            .loss = losses::sparse_categorical_crossentropy()}},
                               .train_step = alike_under_scaling});
              }),
              HasSubstr("for models with one loss, `outputs` has 1"));
}

// ---- losses that a module adds from inside ----

/// A number for each sample and one for all of them; else it keeps them for a step of one's own.
struct AddingNetImpl : torch::nn::Module {
  explicit AddingNetImpl(bool calls_in) : calls(calls_in) {
    first = register_module("first", torch::nn::Linear(4, 8));
    last = register_module("last", torch::nn::Linear(8, 3));
  }
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor hidden = torch::relu(first(x));
    const at::Tensor each = 0.3 * hidden.square().mean(1), all = 0.1 * last->weight.square().sum();
    kept = each + all;
    if (calls) add_loss(each);
    if (calls) add_loss(all);
    return last(hidden);
  }
  bool calls;
  at::Tensor kept;
  torch::nn::Linear first{nullptr}, last{nullptr};
};
TORCH_MODULE(AddingNet);

Loss plain_loss() {
  return {"plain", [](const at::Tensor& y, const at::Tensor& t) {
            return torch::cross_entropy_loss(y, t, {}, at::Reduction::None);
          }};
}

Model adding_model(const std::string& kind, bool calls, const Loss& loss = plain_loss()) {
  Model model(strategy_of(kind, 3), [calls] { return AddingNet(calls); });
  CompileOptions how{.optimizer = optim::adam({.learning_rate = 0.05}),
                     .loss = loss,
                     .metrics = {metrics::accuracy()}};
  if (!calls) {
    how.train_step = [](const StepData& data) -> StepOutcome {
      const at::Tensor y = data.forward(data.inputs)[0];
      const at::Tensor each =
          torch::cross_entropy_loss(y, data.targets[0], {}, at::Reduction::None);
      return {.losses = each + data.module.as<AddingNetImpl>()->kept, .outputs = {y}};
    };
    how.test_step = how.train_step;
  }
  model.compile(how);
  return model;
}

TEST(AddLoss, IsWhatAStepOfOnesOwnAdds) {
  const auto story = [](const std::string& kind, bool calls, FitOptions options) {
    Model model = adding_model(kind, calls);
    options.verbose = 0;
    options.epochs = 2;
    options.validation = three_classes(7).batch(4);
    const History history = model.fit(three_classes(25).batch(10), options);
    return fmt::format("{} {} {}", model.weights_sha256(), history.last("train_loss"),
                       history.last("val_loss"));
  };
  for (const FitOptions& options :
       {FitOptions{}, FitOptions{.accumulate = 2}, FitOptions{.class_weight = {{1, 2.5}}}}) {
    const std::string expected = story("mirrored", false, options);
    EXPECT_EQ(story("mirrored", true, options), expected);
    EXPECT_EQ(story("one_device", true, options), expected);
  }
  Model model = adding_model("mirrored", true);
  AddingNet alone(true);
  const auto own = model.modules().module(0)->parameters();
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < own.size(); ++i) alone->parameters()[i].copy_(own[i]);
  const auto columns = three_classes(7).batch(7).epoch({}).batch(0).columns;
  const at::Tensor y = alone(tensor_of(columns[0]));
  const at::Tensor expected =
      torch::cross_entropy_loss(y, tensor_of(columns[1])) + alone->kept.mean();
  EXPECT_NEAR(model.evaluate(three_classes(7).batch(4)).loss, expected.item<double>(), 1e-5);
}

TEST(AddLoss, IsTakenInLoopsOfOnesOwnAndNowhereElse) {
  AddingNet net(true);
  const at::Tensor x = torch::randn({5, 4});
  net(x);  // nobody takes it
  const AddedLosses added;
  EXPECT_FALSE(added.of(5).defined());
  {
    const AddedLosses inner;
    net(x);
    EXPECT_TRUE(torch::equal(inner.of(5), net->kept));
    EXPECT_THAT(message_of<UsageError>([&] { inner.of(4); }),
                HasSubstr("add_loss: got losses Float [5], expected [4], one for each sample"));
  }
  EXPECT_FALSE(added.of(5).defined());
  EXPECT_THAT(message_of<UsageError>([] { add_loss(torch::ones({2, 2})); }),
              HasSubstr("add_loss: got losses Float [2, 2], expected floats [samples]"));
  EXPECT_THAT(message_of<UsageError>([] { add_loss(torch::ones({2}, at::kLong)); }),
              HasSubstr("got losses Long [2]"));
  EXPECT_THAT(message_of<UsageError>([] { add_loss({}); }), HasSubstr("that are undefined"));
}

TEST(AddLoss, IsRefusedWhereItHasNoPlace) {
  const auto fitted = [](Model model, FitOptions options) {
    options.verbose = 0;
    return message_of<UsageError>([&] { model.fit(three_classes(12).batch(12), options); });
  };
  EXPECT_THAT(fitted(adding_model("mirrored", true), {.microbatches = 2}),
              HasSubstr("add_loss: a batch that comes in microbatches"));
  EXPECT_THAT(fitted(adding_model("mirrored", true,
                                  losses::sparse_categorical_crossentropy({.ignore_label = 2})),
                     {}),
              HasSubstr("leaves labels out, and is a mean over those that count"));
}

}  // namespace
}  // namespace tutti
