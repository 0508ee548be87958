// Every rule, clipping and groups: the same bits from threads, with and without the fused step, as
// from one device that does the parts in turn; and what they do against plain LibTorch.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "tests/support/message_of.h"
#include "tests/support/small_training.h"

namespace tutti {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Recipes = std::vector<std::pair<std::string, optim::Recipe>>;

Recipes rules() {
  return {{"rmsprop", optim::rmsprop({.momentum = 0.5, .centered = true})},
          {"adadelta", optim::adadelta()},
          {"adamax", optim::adamax()},
          {"adam amsgrad", optim::adam({.learning_rate = 0.01, .beta2 = 0.5, .amsgrad = true})},
          {"nadam", optim::nadam()},
          {"lion", optim::lion({.weight_decay = 0.1})},
          {"lars", optim::lars({.weight_decay = 0.01, .trust = 0.1})},
          {"lamb", optim::lamb({.learning_rate = 0.01, .weight_decay = 0.1})}};
}

Recipes with_more() {
  const optim::Rule sgd = optim::sgd({.learning_rate = 0.1, .momentum = 0.9});
  const optim::Rule lamb = optim::lamb({.learning_rate = 0.01});
  return {{"value", {sgd, {.value = 1e-3}}},
          {"norm", {sgd, {.norm = 0.01}}},
          {"global norm", {sgd, {.global_norm = 0.05}}},
          {"lamb, value", {lamb, {.value = 1e-3}}},
          {"lamb, global norm", {lamb, {.global_norm = 0.05}}},
          {"groups",
           {optim::adamw({.learning_rate = 0.01, .weight_decay = 0.5}),
            {},
            {{.pattern = "*.bias", .weight_decay = 0},
             {.pattern = "0.*", .learning_rate_factor = 0.1}}}},
          {"all", {lamb, {.norm = 0.02}, {{.pattern = "6.*", .learning_rate_factor = 2}}}}};
}

test::Trained train(const char* kind, int replicas, const optim::Recipe& recipe,
                    const std::string& reduction = "fused") {
  auto options = test::options_of(kind, replicas);
  options.reduction = reduction;
  return test::train(
      Strategy(options),
      [&](const ReplicatedModules& modules) { return Optimizer(modules, recipe); }, 1);
}

class Recipe : public ::testing::TestWithParam<int> {};

TEST_P(Recipe, HasTheBitsOfThePartsInTurn) {
  auto all = rules();
  for (auto& more : with_more()) all.push_back(std::move(more));
  for (const auto& [name, recipe] : all) {
    const auto in_turn = train("one_device", GetParam(), recipe);
    EXPECT_TRUE(bits_equal(in_turn.parameters, train("mirrored", GetParam(), recipe).parameters))
        << name;
    EXPECT_TRUE(bits_equal(in_turn.parameters,
                           train("mirrored", GetParam(), recipe, "all_reduce").parameters))
        << name;
    EXPECT_TRUE(bits_equal(in_turn.parameters,
                           train("one_device", GetParam(), recipe, "all_reduce").parameters))
        << name;
  }
}

INSTANTIATE_TEST_SUITE_P(Replicas, Recipe, ::testing::Values(1, 2, 3));

// Gradients of one step of sgd with learning rate 1, as the parameters have moved.
std::vector<at::Tensor> moved(const optim::Clip& clip, std::vector<optim::Group> groups = {}) {
  Strategy strategy = test::strategy_of("mirrored", 2);
  Replicated<torch::nn::Sequential> net(strategy, test::small_cnn);
  Optimizer optimizer(net, {optim::sgd({.learning_rate = 1}), clip, std::move(groups)});
  const auto before = test::copy_of(optimizer.updater().parameters(0));
  auto batches = strategy.distribute(test::small_data());
  for (auto&& batch : batches.epoch(0)) {
    test::train_step(strategy, net, optimizer, batch);
    break;
  }
  std::vector<at::Tensor> steps;
  for (size_t i = 0; i < before.size(); ++i)
    steps.push_back(before[i] - optimizer.updater().parameters(0)[i].detach());
  return steps;
}

double norm_of(const std::vector<at::Tensor>& tensors) {
  double squares = 0;
  for (const auto& tensor : tensors)
    squares += tensor.to(at::kDouble).square().sum().item<double>();
  return std::sqrt(squares);
}

TEST(Clipping, ScalesAllTensorsByOneFactorOrEachOrCutsElements) {
  const auto plain = moved({});
  const double norm = norm_of(plain);
  const auto global = moved({.global_norm = norm / 3});
  const auto each = moved({.norm = norm / 3});
  const auto value = moved({.value = 0.01});
  const auto longer = moved({.global_norm = 2 * norm});
  for (size_t i = 0; i < plain.size(); ++i) {
    EXPECT_TRUE(at::allclose(global[i], plain[i] / 3, 1e-4, 1e-7)) << i;
    const double own = norm_of({plain[i]});
    const double factor = own > norm / 3 ? norm / 3 / own : 1;
    EXPECT_TRUE(at::allclose(each[i], plain[i] * factor, 1e-4, 1e-7)) << i;
    EXPECT_TRUE(at::allclose(value[i], plain[i].clamp(-0.01, 0.01), 1e-4, 1e-7)) << i;
    EXPECT_TRUE(at::equal(longer[i], plain[i])) << i;
  }
  EXPECT_GT(norm_of({plain.front()}), 0);
}

TEST(Groups, ScaleTheRateOfWhatFitsTheirPattern) {
  const auto plain = moved({});
  const auto apart = moved({}, {{.pattern = "*.bias", .learning_rate_factor = 0},
                                {.pattern = "4.*", .learning_rate_factor = 0.5}});
  const std::vector<double> factors = {1, 0, 0.5, 0, 1, 0};  // weights and biases in turn
  for (size_t i = 0; i < plain.size(); ++i)
    EXPECT_TRUE(at::allclose(apart[i], plain[i] * factors[i], 1e-4, 1e-7)) << i;
}

TEST(Groups, ThatFitNothingAreAnError) {
  Strategy strategy = test::strategy_of("mirrored", 2);
  Replicated<torch::nn::Sequential> net(strategy, test::small_cnn);
  EXPECT_THAT(test::message_of<UsageError>([&] {
                Optimizer(net, {optim::adam(), {}, {{.pattern = "*.biass", .weight_decay = 0}}});
              }),
              AllOf(HasSubstr("group \"*.biass\": no parameter has such a name"),
                    HasSubstr("0.weight, 0.bias")));
}

// One epoch of small_cnn after `prepare(net)`, which is not changed by the number of replicas.
template <class Prepare>
std::vector<at::Tensor> trained_after(const char* kind, const optim::Recipe& recipe,
                                      Prepare prepare, std::vector<int> worlds) {
  Strategy strategy = test::strategy_of(kind, worlds[0]);
  Replicated<torch::nn::Sequential> net(strategy, [&] {
    auto made = test::small_cnn();
    prepare(made);
    return made;
  });
  Optimizer optimizer(net, recipe);
  for (size_t epoch = 0; epoch < worlds.size(); ++epoch) {
    if (epoch > 0) strategy.resize(worlds[epoch]);
    for (auto&& batch : strategy.distribute(test::small_data()).epoch(static_cast<int64_t>(epoch)))
      test::train_step(strategy, net, optimizer, batch);
  }
  return test::copy_of(optimizer.updater().parameters(0));
}

TEST(FrozenParameters, StayAndCountInNoNorm) {
  // The first layer is frozen. Its blocks come before all others in a plan that needs norms.
  const auto freeze = [](torch::nn::Sequential& net) {
    for (auto& parameter : net->ptr(0)->parameters()) parameter.set_requires_grad(false);
  };
  auto all = with_more();
  all.emplace_back("lamb", optim::lamb({.learning_rate = 0.01}));
  for (const auto& [name, recipe] : all) {
    if (!recipe.groups().empty()) continue;
    std::vector<at::Tensor> start;
    const auto note = [&](torch::nn::Sequential& net) {
      freeze(net);
      start = test::copy_of(net->parameters());
    };
    const auto in_turn = trained_after("one_device", recipe, note, {3});
    for (size_t i = 0; i < start.size(); ++i)
      EXPECT_EQ(at::equal(in_turn[i], start[i]), i < 2) << name << " " << i;
    EXPECT_TRUE(bits_equal(in_turn, trained_after("mirrored", recipe, freeze, {3}))) << name;
  }
}

// With one norm over all: what clips is the norm of what is trained.
TEST(FrozenParameters, LeaveTheGlobalNormToTheOthers) {
  const auto step = [](double most, bool frozen) {
    Strategy strategy = test::strategy_of("mirrored", 2);
    Replicated<torch::nn::Sequential> net(strategy, [frozen] {
      auto made = test::small_cnn();
      for (auto& parameter : made->ptr(0)->parameters()) parameter.set_requires_grad(!frozen);
      return made;
    });
    Optimizer optimizer(net, {optim::sgd({.learning_rate = 1}), {.global_norm = most}});
    const auto before = test::copy_of(optimizer.updater().parameters(0));
    test::train_step(strategy, net, optimizer,
                     *strategy.distribute(test::small_data()).epoch(0).begin());
    std::vector<at::Tensor> steps;
    for (size_t i = 2; i < before.size(); ++i)
      steps.push_back(before[i] - optimizer.updater().parameters(0)[i].detach());
    return steps;
  };
  const auto plain = step(1e9, true);
  EXPECT_NEAR(norm_of(step(norm_of(plain) / 4, true)), norm_of(plain) / 4, 1e-5);
  EXPECT_LT(norm_of(step(norm_of(plain) / 4, false)), 0.999 * norm_of(plain) / 4);
}

TEST(Recipes, ThatNeedNormsGoOnInAnotherWorld) {
  const auto leave = [](torch::nn::Sequential&) {};
  for (const auto& [name, recipe] : with_more()) {
    const auto in_turn = trained_after("one_device", recipe, leave, {2, 3, 1, 4});
    EXPECT_TRUE(bits_equal(in_turn, trained_after("mirrored", recipe, leave, {2, 3, 1, 4})))
        << name;
    // The state went on: anew in the last world it would be another training.
    EXPECT_FALSE(bits_equal(in_turn, trained_after("mirrored", recipe, leave, {4}))) << name;
  }
}

}  // namespace
}  // namespace tutti
