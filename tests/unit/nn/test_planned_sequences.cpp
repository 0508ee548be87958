// Layers over sequences, planned: the bits of autograd.
#include <torch/torch.h>

#include "tutti/nn/graph_module.h"
#include "tutti/nn/layers.h"
#include "tutti/nn/sample_context.h"

#include "tests/support/expect.h"
#include "tests/support/planned.h"
#include "tests/support/random_graph.h"

namespace tutti::planned_sequences {
namespace {

using test::expect_planned_is_by_autograd;

void expect_planned(const nn::Graph& graph, const std::vector<at::Tensor>& inputs,
                    const std::string& frozen = "none") {
  SCOPED_TRACE(graph.summary());
  EXPECT_EQ(nn::make_module(graph)->why_not_planned(), "");
  expect_planned_is_by_autograd(graph, inputs, frozen);
}

class RandomSequenceGraphs : public ::testing::TestWithParam<unsigned> {};

TEST_P(RandomSequenceGraphs, PlannedAreThoseByAutograd) {
  const nn::Graph graph = test::random_sequence_graph(GetParam());
  torch::manual_seed(GetParam());
  const nn::SampleContext place({.seed = 1, .step = 0, .first_row = 0});
  std::vector<int64_t> shape = graph.input_shape();
  for (const int64_t batch : {1, 19}) {
    shape.insert(shape.begin(), batch);
    expect_planned(graph, {torch::randn(shape)});
    shape.erase(shape.begin());
  }
}

INSTANTIATE_TEST_SUITE_P(Forty, RandomSequenceGraphs, ::testing::Range(0U, 40U));

TEST(PlannedSequences, EachActivation) {
  const nn::Layer all[] = {nn::relu(),       nn::gelu(),         nn::gelu({.by_tanh = true}),
                           nn::tanh(),       nn::sigmoid(),      nn::leaky_relu(0.1),
                           nn::elu(),        nn::selu(),         nn::silu(),
                           nn::mish(),       nn::hard_sigmoid(), nn::hard_swish(),
                           nn::relu6(),      nn::softplus(),     nn::softmax(),
                           nn::log_softmax()};
  for (const nn::Layer& activation : all) {
    const auto input = nn::input({7, 5});
    const auto y = activation(nn::linear(9)(activation(nn::linear(11)(input))));
    expect_planned({input, y}, {torch::randn({3, 7, 5}) * 3});
  }
}

/// Where both inputs are equal each has half of the gradient.
TEST(PlannedSequences, OfTwoInputs) {
  using Of = nn::Value (*)(const nn::Value&, const nn::Value&);
  for (const Of of : {Of(nn::subtract), Of(nn::multiply), Of(nn::maximum), Of(nn::minimum)}) {
    const auto input = nn::input({6});
    const auto x = nn::linear(8)(input);
    const auto zeros = of(nn::relu()(x), nn::relu()(nn::linear(8)(input)));
    const auto same = of(zeros, of(x, x));
    expect_planned({input, nn::linear(3)(of(same, nn::linear(8)(input)))}, {torch::randn({9, 6})});
  }
}

TEST(PlannedSequences, ConvolutionsAlongSequences) {
  for (const bool bias : {true, false})
    for (const int64_t groups : {1, 2}) {
      const auto input = nn::input({11, 6});
      auto x = nn::conv1d(8, 3, {.stride = 2, .padding = 1, .groups = groups, .bias = bias})(input);
      x = nn::conv1d(4, 1, {.bias = bias})(nn::relu()(x));
      x = nn::conv_transpose1d(5, 3,
                               {.stride = 2, .padding = 1, .output_padding = 1, .bias = bias})(x);
      const nn::Graph graph(input, nn::linear(3)(nn::gelu()(x)));
      for (const int64_t batch : {1, 9}) expect_planned(graph, {torch::randn({batch, 11, 6})});
    }
}

TEST(PlannedSequences, AValueTimesAnInput) {
  const auto input = nn::input({6});
  const auto gated = nn::multiply(nn::linear(6)(input), input);
  expect_planned({input, nn::linear(2)(nn::maximum(input, gated))}, {torch::randn({5, 6})});
}

TEST(PlannedSequences, AnEmbeddingWhoseTableIsReadTwice) {
  const auto tokens = nn::input({6}, DType::int64);
  const auto table = nn::embedding(20, 8);
  const auto x = nn::layer_norm()(nn::add_position()(table(tokens)));
  const nn::Graph graph(tokens, nn::tied_linear(table)(nn::gelu()(x)));
  const auto given = torch::randint(20, {4, 6}, at::kLong);
  expect_planned(graph, {given});
  const auto planned = nn::make_module(graph);
  EXPECT_THAT(test::message_of<DataError>([&] { planned->forward(given + 15); }),
              ::testing::HasSubstr("expected 0 to 19"));
}

TEST(PlannedSequences, FrozenParametersGetNoGradient) {
  const auto input = nn::input({5, 6});
  auto x = nn::self_attention(2).named("a")(nn::layer_norm().named("n")(input));
  x = nn::add_position().named("p")(nn::prepend_token().named("t")(x));
  x = nn::lstm(4, {.layers = 2}).named("l")(x);
  const nn::Graph graph(input, nn::linear(3).named("out")(x));
  for (const auto& parameter : nn::make_module(graph)->named_parameters())
    expect_planned(graph, {torch::randn({3, 5, 6})}, parameter.key());
  for (const std::string layer : {"a", "n", "p", "t", "l", "out"})
    expect_planned(graph, {torch::randn({3, 5, 6})}, layer);
}

TEST(PlannedSequences, RecurrentLayersWithSteps) {
  for (const bool counts : {true, false})
    for (const bool both : {true, false})
      for (const bool sequences : {true, false}) {
        const auto points = nn::input({8, 3}), given = nn::input({counts ? 1 : 8}, DType::int64);
        const nn::RecurrentLayerOptions options{
            .layers = 2, .bidirectional = both, .sequences = sequences};
        const auto steps =
            counts ? torch::randint(9, {6, 1}, at::kLong) : torch::randint(2, {6, 8}, at::kLong);
        for (const auto& cell : {nn::lstm(5, options), nn::gru(5, options)}) {
          const auto x = nn::linear(4)(points);
          expect_planned(
              {{{"points", points}, {"steps", given}}, {{"y", nn::linear(2)(cell(x, given))}}},
              {torch::randn({6, 8, 3}), steps});
        }
      }
}

/// A softmax of one element is 1: so many steps. Where it is read by others, too, a gradient comes.
TEST(PlannedSequences, AMaskThatIsTrained) {
  const auto points = nn::input({5, 3});
  const auto count = nn::softmax()(nn::linear(1)(nn::flatten()(points)));
  const auto before = nn::linear(4)(count);
  const auto states = nn::lstm(4)(points, count);
  expect_planned({points, nn::add(nn::add(before, states), nn::linear(4)(count))},
                 {torch::randn({6, 5, 3})});
}

TEST(PlannedSequences, WhatARecurrentLayerGivesMayBeWrittenTo) {
  const auto input = nn::input({5, 6});
  for (const auto& cell : {nn::lstm(4, {.sequences = true}), nn::gru(4, {.sequences = true})})
    for (const bool planned : {true, false}) {
      const auto module = nn::make_module(nn::Graph(input, cell.named("l")(input)));
      module->set_planned(planned);
      const auto x = torch::randn({1, 5, 6}), weights = torch::randn({1, 5, 4});
      const auto gradient = [&](bool writes) {
        module->zero_grad();
        at::Tensor y = module->forward(x);
        y = writes ? y.mul_(2) : y * 2;
        (y * weights).sum().backward();
        return module->named_parameters()["l.weight_hh_l0"].grad().clone();
      };
      EXPECT_TRUE(torch::equal(gradient(true), gradient(false))) << planned;
    }
}

TEST(PlannedSequences, AWriteBetweenForwardAndBackwardIsAnError) {
  const auto input = nn::input({5, 6});
  const auto x = nn::linear(6).named("first")(input);
  const auto y =
      nn::lstm(4).named("l")(nn::self_attention(2).named("a")(nn::layer_norm().named("n")(x)));
  const auto module = nn::make_module(nn::Graph(input, y));
  for (const char* name : {"n.weight", "a.in_proj_weight", "a.out_proj.weight", "l.weight_hh_l0"}) {
    const auto loss = module->forward(torch::randn({2, 5, 6})).sum();
    {
      torch::NoGradGuard no_grad;
      module->named_parameters()[name].add_(1);
    }
    EXPECT_THAT(test::message_of<UsageError>([&] { loss.backward(); }),
                ::testing::HasSubstr("modified by an inplace operation"))
        << name;
  }
}

TEST(PlannedSequences, InEvaluationDropoutPassesItsInputOn) {
  const auto input = nn::input({6});
  const auto module =
      nn::make_module(nn::Graph(input, nn::dropout(0.5)(nn::linear(4).named("l")(input))));
  module->eval();
  const auto x = torch::randn({3, 6});
  const auto y = module->forward(x);
  EXPECT_TRUE(torch::equal(y, torch::linear(x, module->named_parameters()["l.weight"],
                                            module->named_parameters()["l.bias"])));
  y.sum().backward();
  EXPECT_TRUE(torch::equal(module->named_parameters()["l.bias"].grad(), torch::full({4}, 3.0F)));
}

}  // namespace
}  // namespace tutti::planned_sequences
