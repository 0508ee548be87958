// A planned pass in bfloat16, held against the same network in float32.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "tutti/nn/detail/slow_bfloat16.h"
#include "tutti/nn/graph_module.h"
#include "tutti/nn/precision.h"

#include "tests/support/random_graph.h"

namespace tutti {
namespace {

using ::testing::HasSubstr;

at::Tensor forward_in(Precision precision, nn::GraphModule& module, const at::Tensor& x) {
  const Autocast autocast(precision);
  return module.forward(x).to(at::kFloat);
}

/// Distance over length, of all elements.
double apart(const at::Tensor& a, const at::Tensor& b) {
  const double length = b.norm().item<double>();
  return (a - b).norm().item<double>() / std::max(length, 1e-6);
}

struct Pass {
  at::Tensor output;
  std::vector<std::pair<std::string, at::Tensor>> gradients;
};

Pass pass_in(Precision precision, const nn::Graph& graph, const at::Tensor& x, bool planned) {
  torch::manual_seed(11);
  const auto module = nn::make_module(graph);
  module->set_planned(planned);
  Pass pass{.output = forward_in(precision, *module, x)};
  // Not about 0: else the gradient of a bias at the end is a sum of which nothing is left.
  const auto above = torch::linspace(0.5, 1.5, pass.output.numel()).view(pass.output.sizes());
  (pass.output * above).sum().backward();
  for (const auto& parameter : module->named_parameters())
    pass.gradients.emplace_back(parameter.key(), parameter->grad());
  return pass;
}

/// Outputs and gradients are float32, and not much further from those of float32 than what autocast
/// makes of them: a ReLU or a pool that chooses otherwise changes much in both.
void expect_near_float32(const nn::Graph& graph, const at::Tensor& x) {
  const Pass full = pass_in(Precision::float32, graph, x, true);
  const Pass planned = pass_in(Precision::bfloat16, graph, x, true);
  const Pass autocast = pass_in(Precision::bfloat16, graph, x, false);
  EXPECT_FALSE(torch::equal(planned.output, full.output)) << "bfloat16 makes a difference";
  const auto expect_near = [](const at::Tensor& got, const at::Tensor& by_autocast,
                              const at::Tensor& expected, const std::string& what) {
    EXPECT_LT(apart(got, expected), 1.5 * apart(by_autocast, expected) + 0.02) << what;
  };
  expect_near(planned.output, autocast.output, full.output, "output");
  for (size_t i = 0; i < full.gradients.size(); ++i) {
    const auto& [name, expected] = full.gradients[i];
    const at::Tensor& own = planned.gradients[i].second;
    EXPECT_EQ(own.scalar_type(), at::kFloat) << name;
    EXPECT_EQ(own.strides(), expected.strides()) << name;
    expect_near(own, autocast.gradients[i].second, expected, name);
  }
}

nn::Value block(const nn::Value& x, int64_t channels) {
  const auto y = nn::conv2d(channels, 3, {.padding = 1})(x);
  return nn::relu()(nn::add(y, nn::conv2d(channels, 1)(x)));
}

TEST(PlannedInBfloat16, IsFloat32UpToItsDigits) {
  const auto image = nn::input({3, 9, 9});
  auto x = block(block(image, 8), 16);
  x = nn::max_pool2d(2)(x);
  x = nn::gelu({.by_tanh = true})(nn::linear(40)(nn::flatten()(x)));
  x = nn::relu()(nn::linear(30)(nn::gelu()(nn::linear(50)(x))));
  expect_near_float32({image, nn::linear(10)(x)}, torch::randn({17, 3, 9, 9}));
}

TEST(PlannedInBfloat16, SequencesAreFloat32UpToItsDigits) {
  const auto steps = nn::input({20, 12});
  auto x = nn::tanh()(nn::linear(24)(steps));
  x = nn::add(x, nn::linear(24)(nn::gelu({.by_tanh = true})(nn::linear(48)(x))));
  expect_near_float32({steps, nn::linear(5)(x)}, torch::randn({7, 20, 12}));
}

// A norm is float32, also where a sum applies it to what comes of a convolution in bfloat16.
TEST(PlannedInBfloat16, NormsAndSumsAreFloat32UpToItsDigits) {
  torch::manual_seed(5);
  const auto image = nn::input({3, 8, 8});
  const auto normed = [](const nn::Value& of) {
    return nn::batch_norm2d()(nn::conv2d(16, 3, {.padding = 1, .bias = false})(of));
  };
  auto x = nn::relu()(normed(image));
  x = nn::relu()(nn::add(normed(x), nn::conv2d(16, 1)(x)));
  x = nn::relu()(nn::add(x, nn::conv2d(16, 1)(x)));
  const nn::Graph graph{image, nn::linear(5)(nn::global_avg_pool2d()(x))};
  EXPECT_EQ(nn::make_module(graph)->why_not_planned(), "");
  expect_near_float32(graph, torch::randn({17, 3, 8, 8}));
}

TEST(PlannedInBfloat16, AttentionAndRecurrentLayersAreFloat32UpToItsDigits) {
  torch::manual_seed(5);
  const auto steps = nn::input({9, 12});
  auto x = nn::linear(24)(steps);
  x = nn::layer_norm()(nn::add(x, nn::self_attention(3)(x)));
  x = nn::add(x, nn::attention(2, {.causal = true})(nn::linear(72)(x)));
  const nn::Graph graph{steps, nn::linear(5)(nn::lstm(16)(x))};
  EXPECT_EQ(nn::make_module(graph)->why_not_planned(), "");
  expect_near_float32(graph, torch::randn({7, 9, 12}));
}

TEST(PlannedInBfloat16, ATiedHeadAndItsEmbeddingAddTheirGradientsInFloat32) {
  torch::manual_seed(5);
  constexpr int64_t kTokens = 30;
  const auto tokens = nn::input({7}, DType::int64);
  const auto embedding = nn::embedding(kTokens, 16, {.initial_deviation = 0.5});
  const auto x = nn::gelu({.by_tanh = true})(nn::linear(16)(embedding(tokens)));
  const nn::Graph graph{tokens, nn::tied_linear(embedding)(x)};
  EXPECT_EQ(nn::make_module(graph)->why_not_planned(), "");
  expect_near_float32(graph, torch::randint(kTokens, {5, 7}, torch::kLong));
}

class RandomGraphsInBfloat16 : public ::testing::TestWithParam<unsigned> {};

TEST_P(RandomGraphsInBfloat16, AreFloat32UpToItsDigits) {
  const nn::Graph graph = test::random_graph(GetParam());
  SCOPED_TRACE(graph.summary());
  torch::manual_seed(GetParam());
  std::vector<int64_t> shape = graph.input_shape();
  shape.insert(shape.begin(), 37);
  expect_near_float32(graph, torch::randn(shape));
}

INSTANTIATE_TEST_SUITE_P(Twenty, RandomGraphsInBfloat16, ::testing::Range(0U, 20U));

nn::Graph dense() {
  const auto input = nn::input({6});
  return {input, nn::linear(3).named("out")(nn::relu()(nn::linear(40).named("hidden")(input)))};
}

TEST(PlannedInBfloat16, IsOneNodeAndComputesInIt) {
  const auto module = nn::make_module(dense());
  const Autocast autocast(Precision::bfloat16);
  const auto y = module->forward(torch::ones({4, 6}));
  EXPECT_EQ(y.scalar_type(), at::kBFloat16);
  EXPECT_EQ(y.grad_fn()->name(), "tutti::nn::detail::PlannedBackward");
  EXPECT_EQ(torch::linear(torch::ones({2, 2}), torch::ones({2, 2})).scalar_type(), at::kBFloat16)
      << "the scope is as it was";
}

TEST(PlannedInBfloat16, WeightsMayChangeBetweenForwardAndBackward) {
  // The copy is the pass's own: gradients are of what it computed with.
  const auto module = nn::make_module(dense());
  const auto x = torch::randn({4, 6});
  forward_in(Precision::bfloat16, *module, x).sum().backward();
  const auto weight = module->named_parameters()["hidden.weight"];
  const auto expected = weight.grad().clone();
  module->zero_grad();
  const auto loss = forward_in(Precision::bfloat16, *module, x).sum();
  {
    const torch::NoGradGuard no_grad;
    module->named_parameters()["out.weight"].add_(1);
  }
  loss.backward();
  EXPECT_TRUE(torch::equal(weight.grad(), expected));
}

TEST(PlannedInBfloat16, FrozenParametersGetNoGradient) {
  const auto module = nn::make_module(dense());
  module->named_parameters()["hidden.weight"].set_requires_grad(false);
  forward_in(Precision::bfloat16, *module, torch::ones({4, 6})).sum().backward();
  EXPECT_FALSE(module->named_parameters()["hidden.weight"].grad().defined());
  EXPECT_TRUE(module->named_parameters()["hidden.bias"].grad().defined());
}

TEST(PlannedInBfloat16, WhatIsNoNumberIsSeen) {
  const auto module = nn::make_module(dense());
  auto x = torch::ones({2, 6});
  x[1][3] = std::nan("");
  const auto y = forward_in(Precision::bfloat16, *module, x);
  EXPECT_TRUE(y[0].isfinite().all().item<bool>());
  EXPECT_FALSE(y[1].isfinite().any().item<bool>());
}

TEST(SlowBfloat16, IsSaidWithItsFactor) {
  const auto measure = [] { return 2.345; };
  EXPECT_EQ(detail::words_of_slow_bfloat16(true, measure), "");
  EXPECT_THAT(detail::words_of_slow_bfloat16(false, measure),
              HasSubstr("takes 2.3 times as long as in float32"));
}

}  // namespace
}  // namespace tutti
