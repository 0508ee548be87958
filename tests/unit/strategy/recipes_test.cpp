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

}  // namespace
}  // namespace tutti
