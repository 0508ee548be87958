// Layers of models that read tokens: embedding, the head tied to it, causal attention.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>

#include "tutti/base/error.h"
#include "tutti/nn/attention.h"
#include "tutti/nn/graph_module.h"

#include "tests/support/message_of.h"
#include "tests/support/planned.h"

namespace tutti {
namespace {

using ::testing::HasSubstr;

nn::Graph tied_graph() {
  const auto tokens = nn::input({3}, DType::int64);
  const auto embedding = nn::embedding(5, 4).named("tokens_in");
  return nn::Graph(tokens, nn::tied_linear(embedding)(nn::gelu()(embedding(tokens))));
}

TEST(SequenceLayers, ATiedHeadHasTheEmbeddingsParameter) {
  const auto graph = tied_graph();
  EXPECT_EQ(graph.num_parameters(), 20);
  EXPECT_EQ(graph.output_shape(), (nn::Shape{3, 5}));
  EXPECT_THAT(graph.summary(), HasSubstr("shared"));
  torch::manual_seed(3);
  const auto module = nn::make_module(graph);
  ASSERT_EQ(module->named_parameters().size(), 1U);
  const at::Tensor weight = module->named_parameters()["tokens_in.weight"];
  const auto x = torch::tensor({{4, 0, 4}, {1, 2, 2}}, torch::kLong);
  const auto y = module->forward(x);

  const auto own = weight.detach().clone().requires_grad_();
  const auto expected = torch::gelu(own.index_select(0, x.flatten())).matmul(own.t());
  EXPECT_TRUE(torch::allclose(y, expected.view({2, 3, 5}), 1e-5, 1e-6));
  y.pow(2).sum().backward();
  expected.pow(2).sum().backward();
  EXPECT_TRUE(torch::allclose(weight.grad(), own.grad(), 1e-5, 1e-5));
}

TEST(SequenceLayers, InitialValuesHaveTheDeviationThatTheyAreTold) {
  torch::manual_seed(4);
  const auto tokens = nn::input({2}, DType::int64);
  const auto x = nn::embedding(300, 100, {.initial_deviation = 0.5}).named("in")(tokens);
  const auto module = nn::make_module(
      nn::Graph(tokens, nn::linear(200, {.initial_deviation = 0.02}).named("out")(x)));
  const auto parameters = module->named_parameters();
  EXPECT_NEAR(parameters["in.weight"].std().item<double>(), 0.5, 0.01);
  EXPECT_NEAR(parameters["out.weight"].std().item<double>(), 0.02, 0.0005);
  EXPECT_NEAR(parameters["out.weight"].mean().item<double>(), 0, 0.0005);
  EXPECT_EQ(parameters["out.bias"].abs().max().item<double>(), 0);
}

/// Place by place, head by head.
at::Tensor attend_slowly(const at::Tensor& x, int64_t heads, bool causal) {
  const int64_t length = x.size(1), features = x.size(2) / 3, width = features / heads;
  auto out = torch::zeros({x.size(0), length, features}, x.options());
  for (int64_t b = 0; b < x.size(0); ++b)
    for (int64_t h = 0; h < heads; ++h)
      for (int64_t i = 0; i < length; ++i) {
        const auto part = [&](int64_t which, int64_t place) {
          return x[b][place].narrow(0, which * features + h * width, width);
        };
        const int64_t seen = causal ? i + 1 : length;
        auto scores = torch::zeros({seen}, x.options());
        for (int64_t j = 0; j < seen; ++j)
          scores[j] = part(0, i).dot(part(1, j)) / std::sqrt(static_cast<double>(width));
        const auto shares = scores.softmax(0);
        for (int64_t j = 0; j < seen; ++j)
          out[b][i].narrow(0, h * width, width) += shares[j] * part(2, j);
      }
  return out;
}

TEST(SequenceLayers, AttentionIsThatOfTheFormula) {
  torch::manual_seed(5);
  const auto x = torch::randn({2, 5, 3 * 6});
  for (const bool causal : {false, true})
    for (const int64_t heads : {1, 2, 3})
      EXPECT_TRUE(torch::allclose(nn::attend(x, heads, causal), attend_slowly(x, heads, causal),
                                  1e-4, 1e-5))
          << heads << causal;
}

TEST(SequenceLayers, GeluByTanhIsPlannedWithTheBitsOfAutograd) {
  const auto input = nn::input({6});
  torch::manual_seed(6);
  const auto x = torch::randn({3, 6});
  test::expect_planned_is_by_autograd(
      nn::Graph(input, nn::linear(4)(nn::gelu({.by_tanh = true})(nn::linear(5)(input)))), x);
  const auto alone = nn::make_module(nn::Graph(input, nn::gelu({.by_tanh = true})(input)));
  const auto cubed = 0.044715 * x.pow(3);
  EXPECT_TRUE(torch::allclose(alone->forward(x),
                              0.5 * x * (1 + torch::tanh(std::sqrt(2 / M_PI) * (x + cubed))), 1e-5,
                              1e-6));
}

TEST(SequenceLayers, WhatDoesNotFitIsRefusedWhileTheGraphIsWritten) {
  const auto refusal = [](auto make) { return test::message_of<UsageError>(make); };
  const auto tokens = nn::input({3}, DType::int64), rows = nn::input({3, 7});
  EXPECT_THAT(refusal([&] { nn::embedding(5, 4)(rows); }),
              HasSubstr("embedding: got an input of shape [3, 7], expected [length]"));
  EXPECT_THAT(refusal([&] { nn::embedding(0, 4)(tokens); }), HasSubstr("vocabulary is 0"));
  EXPECT_THAT(refusal([&] { nn::tied_linear(nn::linear(4)); }),
              HasSubstr("got linear, expected an embedding"));
  EXPECT_THAT(refusal([&] { nn::tied_linear(nn::embedding(5, 4))(rows); }),
              HasSubstr("expected the 4 features of the embedding"));
  EXPECT_THAT(refusal([&] { nn::attention(1)(rows); }), HasSubstr("expected [length, 3 features]"));
  EXPECT_THAT(refusal([&] { nn::attention(2)(nn::input({3, 9})); }),
              HasSubstr("heads is 2, must divide 3 features"));
}

}  // namespace
}  // namespace tutti
