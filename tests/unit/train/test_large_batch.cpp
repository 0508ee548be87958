// Each part of the recipe for large batches: rates, groups, initial values, and what it refuses.
#include <cmath>
#include <string>
#include <vector>

#include "tutti/sync/tensors.h"
#include "tutti/train/model/detail/large_batch.h"

#include "tests/support/expect.h"
#include "tests/unit/train/small_model.h"

namespace tutti {
namespace {

// Two residual blocks, the second with a projection.
nn::Graph two_blocks() {
  const auto input = nn::input({1, 2, 2});
  const auto norm = [](const char* name) { return nn::batch_norm2d().named(name); };
  auto x = nn::relu()(norm("first")(nn::conv2d(3, 1)(input)));
  x = nn::relu()(nn::add(norm("a.last")(nn::conv2d(3, 1)(x)), x));
  const auto shortcut = norm("b.shortcut")(nn::conv2d(4, 1)(x));
  const auto branch = nn::conv2d(4, 1)(nn::relu()(norm("b.middle")(nn::conv2d(4, 1)(x))));
  x = nn::relu()(nn::add(norm("b.last")(branch), shortcut));
  return nn::Graph(input, nn::linear(3)(nn::flatten()(x)));
}

std::vector<double> rates_of_fit(Model& model, int64_t samples, int64_t batch, FitOptions options) {
  std::vector<double> rates;
  options.callbacks = {callbacks::lambda("rates", {.on_step_end = [&](Training& training) {
                                           rates.push_back(training.learning_rate());
                                         }})};
  options.verbose = 0;
  model.fit(three_classes(samples).batch(batch), options);
  return rates;
}

Model compiled_for(const LargeBatch& large, const OptimizerChoice& optimizer,
                   const std::optional<RateSchedule>& schedule = {}) {
  Model model(strategy_of("one_device", 1), [] { return small_graph(); });
  CompileOptions options = adam_and_accuracy();
  options.optimizer = optimizer;
  options.learning_rate = schedule;
  options.large_batch = large;
  model.compile(options);
  return model;
}

TEST(LargeBatch, ScalesTheRateAndWarmsUp) {
  const OptimizerChoice sgd = optim::sgd({.learning_rate = 0.3});
  const OptimizerChoice adam = optim::adam({.learning_rate = 0.3});
  const RateSchedule halves("halves", [](int64_t step) { return std::pow(0.5, step); });
  const struct {
    std::string name;
    LargeBatch large;
    OptimizerChoice optimizer;
    std::optional<RateSchedule> schedule;
    int64_t accumulate;
    double factor;
    int64_t warm_up;
    double base;
  } cases[] = {
      {"linear", {.base = 4, .base_rate = 0.1}, sgd, {}, 1, 2, 15, 0.1},
      {"of two batches", {.base = 4, .base_rate = 0.1}, sgd, {}, 2, 4, 10, 0.1},
      {"adam", {.base = 2, .base_rate = 0.1}, adam, {}, 1, 2, 15, 0.1},
      {"adam, linear", {.base = 2, .scaling = BatchScaling::linear}, adam, {}, 1, 4, 15, 0.3},
      {"lars", {.base = 4}, optim::lars({.learning_rate = 0.2}), {}, 1, 2, 15, 0.2},
      {"lamb", {.base = 2}, optim::lamb({.learning_rate = 0.2}), {}, 1, 2, 15, 0.2},
      {"root", {.base = 2, .scaling = BatchScaling::square_root}, sgd, {}, 1, 2, 15, 0.3},
      {"steps", {.base = 4, .warm_up = {.epochs = 1, .steps = 2}}, sgd, {}, 1, 2, 5, 0.3},
      {"no warm-up", {.base = 4, .warm_up = {}}, sgd, {}, 1, 2, 0, 0.3},
      {"smaller than the base", {.base = 16}, sgd, {}, 1, 0.5, 0, 0.3},
      {"schedule", {.base = 4, .warm_up = {.steps = 4}}, sgd, halves, 1, 2, 4, 0},
  };
  for (const auto& c : cases) {
    Model model = compiled_for(c.large, c.optimizer, c.schedule);
    const auto rates = rates_of_fit(model, 24, 8, {.epochs = 6, .accumulate = c.accumulate});
    ASSERT_EQ(rates.size(), c.accumulate == 1 ? 18U : 12U) << c.name;
    for (size_t step = 0; step < rates.size(); ++step) {
      const auto at = static_cast<double>(step);
      const double share = c.warm_up == 0 ? 1 : std::min(1.0, at / static_cast<double>(c.warm_up));
      const double base = c.schedule ? halves(static_cast<int64_t>(step)) : c.base;
      EXPECT_NEAR(rates[step], base * (1 + (c.factor - 1) * share), 1e-12) << c.name << step;
    }
  }
}

TEST(LargeBatch, TrainsAsItsPartsGivenByHand) {
  const optim::Rule rule =
      optim::sgd({.learning_rate = 0.1, .momentum = 0.9, .weight_decay = 0.05});
  const auto train = [&](const std::string& kind, bool by_hand) {
    Model model(strategy_of(kind, 2), [] { return small_graph(); });
    CompileOptions options = adam_and_accuracy();
    if (by_hand) {
      options.optimizer = optim::Recipe(rule, {}, {{.pattern = "*.bias", .weight_decay = 0}});
      options.learning_rate = schedules::scaled(schedules::constant(0.1), 4, 6);
    } else {
      options.optimizer = rule;
      options.large_batch = LargeBatch{.base = 2, .warm_up = epochs(2)};
    }
    model.compile(options);
    model.fit(three_classes(24).shuffle().batch(8), {.epochs = 4, .verbose = 0});
    return model.weights_sha256();
  };
  EXPECT_EQ(train("one_device", false), train("one_device", true));
  EXPECT_EQ(train("mirrored", false), train("one_device", true));
}

TEST(LargeBatchDecay, SparesNormsAndBiasesButWhereAGroupSaysOtherwise) {
  const NamedTensors parameters = {{"conv.weight", at::zeros({2, 2, 1, 1})},
                                   {"conv.bias", at::zeros({2})},
                                   {"norm.weight", at::zeros({2})},
                                   {"norm.bias", at::zeros({2})},
                                   {"scale", at::zeros({})},
                                   {"head.weight", at::zeros({3, 2})}};
  const optim::Recipe recipe(optim::sgd({.weight_decay = 0.5}), {.norm = 2},
                             {{.pattern = "norm.weight", .weight_decay = 0.25},
                              {.pattern = "norm.*", .learning_rate_factor = 0.1}});
  std::string words;
  const optim::Recipe spared = detail::spared(recipe, parameters, words);
  EXPECT_EQ(spared.clip().norm, 2);
  const auto decay = [&](const char* name) {
    return std::get<optim::SgdOptions>(spared.rule_for(name).options()).weight_decay;
  };
  const auto factor = [&](const char* name) {
    const optim::Group* const group = spared.group_of(name);
    return group == nullptr ? 1 : group->learning_rate_factor;
  };
  EXPECT_EQ(decay("conv.weight"), 0.5);
  EXPECT_EQ(decay("head.weight"), 0.5);
  EXPECT_EQ(decay("norm.weight"), 0.25);
  for (const char* name : {"conv.bias", "norm.bias", "scale"}) EXPECT_EQ(decay(name), 0) << name;
  EXPECT_EQ(factor("norm.bias"), 0.1);
  EXPECT_EQ(factor("conv.bias"), 1);
  EXPECT_THAT(words, HasSubstr("weight decay 0.5: not of 3 of 6 parameters"));
  const optim::Recipe none(optim::sgd());
  EXPECT_TRUE(detail::spared(none, parameters, words).groups().empty());
  EXPECT_THAT(words, HasSubstr("sgd has none"));
}

std::vector<at::Tensor> norm_weights(const Model& model, int local) {
  std::vector<at::Tensor> weights;
  for (const auto& [name, tensor] : unique_parameters(*model.modules().module(local)))
    if (name.ends_with("last.weight") || name == "first.weight" || name == "b.shortcut.weight" ||
        name == "b.middle.weight")
      weights.push_back(tensor.detach().clone());
  return weights;
}

std::vector<double> sums_of(const std::vector<at::Tensor>& tensors) {
  std::vector<double> sums;
  for (const at::Tensor& tensor : tensors) sums.push_back(tensor.sum().item<double>());
  return sums;
}

TEST(LargeBatchNorms, BeginAtZeroWhereABlockEndsOnEveryReplica) {
  for (const bool zeroes : {true, false}) {
    Model model(strategy_of("mirrored", 2), [] { return two_blocks(); });
    CompileOptions options = adam_and_accuracy();
    options.large_batch = LargeBatch{.base = 4, .zero_last_norms = zeroes};
    model.compile(options);
    for (const int local : {0, 1})
      EXPECT_THAT(sums_of(norm_weights(model, local)),
                  zeroes ? ElementsAre(3, 0, 4, 4, 0) : ElementsAre(3, 3, 4, 4, 4));
    model.fit(three_classes(24, {1, 2, 2}).batch(8), {.epochs = 2, .verbose = 0});
    const auto trained = norm_weights(model, 0);
    for (const at::Tensor& weight : trained) EXPECT_GT(weight.abs().sum().item<double>(), 0);
    // What is trained stays.
    model.compile(options);
    EXPECT_EQ(sums_of(norm_weights(model, 1)), sums_of(trained));
  }
}

TEST(LargeBatchWords, SayEachPart) {
  Model model(strategy_of("one_device", 1), [] { return two_blocks(); });
  const optim::Recipe recipe(optim::sgd({.learning_rate = 0.1, .weight_decay = 1e-4}));
  detail::LargeBatchParts parts{.options = {.base = 256, .base_rate = 0.1, .warm_up = epochs(5)},
                                .rule = recipe.rule()};
  parts.words.push_back(detail::zero_last_norms(two_blocks(), model.modules()));
  const auto scaled = detail::scaled_rate(parts, 4096, 6);
  EXPECT_THAT(scaled.words,
              ElementsAre(AllOf(HasSubstr("a step has 4096 samples, 16 times the 256"),
                                HasSubstr("rate 0.1 x 16 = 1.6 (linear scaling, as sgd wants it)")),
                          HasSubstr("warm-up: in 30 steps the rate grows to 16 times"),
                          HasSubstr("all tensors have one rate"), HasSubstr("batch norms at 0: 2"),
                          HasSubstr("momentum: no correction is needed")));
  EXPECT_THAT(scaled.words[3], HasSubstr("a.last, b.last"));
  EXPECT_DOUBLE_EQ(scaled.rate(0), 0.1);
  EXPECT_DOUBLE_EQ(scaled.rate(30), 1.6);
  EXPECT_THAT(detail::zero_last_norms(two_blocks(), model.modules()),
              AllOf(HasSubstr("none, no residual block ends with a fresh one"),
                    HasSubstr("a.last, b.last stay as they are")));
  EXPECT_THAT(detail::zero_last_norms({}, model.modules()), HasSubstr("the model is no graph"));
}

TEST(LargeBatchErrors, NameTheField) {
  const auto refusal = [](const LargeBatch& large, const OptimizerChoice& optimizer,
                          const std::optional<RateSchedule>& schedule = {}) {
    return message_of<UsageError>([&] { compiled_for(large, optimizer, schedule); });
  };
  EXPECT_THAT(refusal({.base = 0}, optim::sgd()), HasSubstr("large_batch: base = 0"));
  EXPECT_THAT(refusal({.base_rate = -1}, optim::sgd()), HasSubstr("base_rate = -1"));
  EXPECT_THAT(refusal({.warm_up = epochs(-1)}, optim::sgd()), HasSubstr("warm_up.epochs = -1"));
  EXPECT_THAT(refusal({.warm_up = {.steps = -2}}, optim::sgd()), HasSubstr("warm_up.steps = -2"));
  EXPECT_THAT(refusal({.base_rate = 0.1}, optim::sgd(), schedules::constant(1)),
              AllOf(HasSubstr("base_rate = 0.1"), HasSubstr("give one of them")));
  const TorchOptimizerFactory torch_sgd = [](std::vector<at::Tensor> all) {
    return std::make_unique<torch::optim::SGD>(std::move(all), torch::optim::SGDOptions(0.1));
  };
  EXPECT_THAT(refusal({}, torch_sgd), HasSubstr("got a torch optimizer"));
  Model model = compiled_for({.base = 4}, optim::sgd());
  const at::Tensor x = at::zeros({2, 4});
  const at::Tensor y = at::zeros({2}, at::kLong);
  EXPECT_THAT(message_of<UsageError>([&] { model.train_on_batch(x, y); }),
              HasSubstr("warm_up is 5 epochs"));
  Model by_steps = compiled_for({.base = 4, .warm_up = {.steps = 3}}, optim::sgd());
  EXPECT_NO_THROW(by_steps.train_on_batch(x, y));
}

}  // namespace
}  // namespace tutti
