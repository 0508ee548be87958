#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <limits>

#include "tutti/base/error.h"
#include "tutti/nn/graph_module.h"
#include "tutti/sync/detail/gradient_listener.h"

#include "tests/support/message_of.h"
#include "tests/support/planned.h"
#include "tests/support/random_graph.h"

namespace tutti {
namespace {

using test::expect_planned_is_by_autograd;
using test::message_of;
using ::testing::HasSubstr;

class RandomGraphs : public ::testing::TestWithParam<unsigned> {};

TEST_P(RandomGraphs, PlannedAreThoseByAutograd) {
  const nn::Graph graph = test::random_graph(GetParam());
  SCOPED_TRACE(graph.summary());
  torch::manual_seed(GetParam());
  std::vector<int64_t> shape = graph.input_shape();
  for (const int64_t batch : {1, 37}) {
    shape.insert(shape.begin(), batch);
    auto x = torch::randn(shape);
    expect_planned_is_by_autograd(graph, x);
    shape.erase(shape.begin());
  }
  EXPECT_EQ(nn::make_module(graph)->why_not_planned(), "");
}

INSTANTIATE_TEST_SUITE_P(Twenty, RandomGraphs, ::testing::Range(0U, 20U));

nn::Graph small_graph() {
  const auto input = nn::input({1, 6, 6});
  auto x = nn::max_pool2d(2)(nn::relu()(nn::conv2d(4, 3, {.padding = 1}).named("conv")(input)));
  x = nn::relu()(nn::linear(8).named("hidden")(nn::flatten()(x)));
  return {input, nn::linear(3).named("out")(x)};
}

TEST(Planned, FrozenParametersGetNoGradientAndCostNone) {
  for (const std::string frozen :
       {"conv.weight", "conv.bias", "hidden.weight", "out.bias", "out"}) {
    torch::manual_seed(1);
    const auto planned = nn::make_module(small_graph());
    torch::manual_seed(1);
    const auto by_autograd = nn::make_module(small_graph());
    by_autograd->set_planned(false);
    const auto x = torch::randn({5, 1, 6, 6});
    for (const auto& module : {planned, by_autograd}) {
      for (auto& parameter : module->named_parameters())
        if (parameter.key().starts_with(frozen)) parameter->set_requires_grad(false);
      module->forward(x).pow(2).sum().backward();
    }
    const auto theirs = by_autograd->named_parameters();
    for (const auto& parameter : planned->named_parameters()) {
      const at::Tensor &got = parameter->grad(), &expected = theirs[parameter.key()].grad();
      ASSERT_EQ(got.defined(), expected.defined()) << frozen << " frozen: " << parameter.key();
      EXPECT_TRUE(!got.defined() || torch::equal(got, expected)) << parameter.key();
    }
  }
}

TEST(Planned, SeveralOutputsOfWhichSomeAreNotUsed) {
  const auto input = nn::input({6});
  const auto x = nn::relu()(nn::linear(5)(input));
  const nn::Graph graph({{"in", input}}, {{"left", nn::linear(2).named("l")(x)},
                                          {"right", nn::linear(3).named("r")(x)}});
  torch::manual_seed(1);
  const auto planned = nn::make_module(graph);
  torch::manual_seed(1);
  const auto by_autograd = nn::make_module(graph);
  by_autograd->set_planned(false);
  const auto given = torch::randn({4, 6});
  for (const bool both : {true, false})
    for (const auto& module : {planned, by_autograd}) {
      const auto outputs = module->forward_all({given});
      auto loss = outputs[0].pow(2).sum();
      if (both) loss = loss + outputs[1].sum();
      loss.backward();
    }
  const auto theirs = by_autograd->named_parameters();
  for (const auto& parameter : planned->named_parameters())
    EXPECT_TRUE(torch::equal(parameter->grad(), theirs[parameter.key()].grad()));
}

TEST(Planned, AllOutputsAreThoseByAutograd) {
  const auto input = nn::input({6});
  const auto x = nn::relu()(nn::linear(5)(input)), y = nn::linear(3)(x);
  expect_planned_is_by_autograd(
      nn::Graph({{"in", input}}, {{"y", y},
                                  {"read_on", x},
                                  {"later", nn::tanh()(nn::add(y, nn::gelu()(y)))},
                                  {"again", y}}),
      torch::randn({7, 6}));
}

TEST(Planned, SumsOfWholeNumbersAreCutOff) {
  const auto a = nn::input({4}, DType::int64), b = nn::input({4}, DType::int64);
  const auto words = nn::embedding(20, 3)(nn::relu()(nn::add(a, b)));
  expect_planned_is_by_autograd(
      nn::Graph({{"a", a}, {"b", b}}, {{"y", nn::linear(2)(nn::flatten()(words))}}),
      {torch::randint(10, {5, 4}), torch::randint(10, {5, 4})});
}

TEST(Planned, WhatIsNoNumberIsSeen) {
  const auto module = nn::make_module(small_graph());
  auto x = torch::ones({2, 1, 6, 6});
  x[1][0][2][2] = std::numeric_limits<float>::quiet_NaN();
  const auto y = module->forward(x);
  EXPECT_TRUE(y[0].isfinite().all().item<bool>());
  EXPECT_FALSE(y[1].isfinite().any().item<bool>());
  y.sum().backward();
  EXPECT_FALSE(module->named_parameters()["conv.weight"].grad().isfinite().all().item<bool>());
}

TEST(Planned, AnEmptyBatchIsAutograds) {
  const auto module = nn::make_module(small_graph());
  const auto y = module->forward(torch::ones({0, 1, 6, 6}));
  EXPECT_EQ(y.size(0), 0);
  y.sum().backward();
}

TEST(Planned, AWriteBetweenForwardAndBackwardIsAnError) {
  const auto module = nn::make_module(small_graph());
  const auto x = torch::ones({2, 1, 6, 6});
  for (const std::string name : {"hidden.weight", "out.weight"}) {
    const auto loss = module->forward(x).sum();
    {
      torch::NoGradGuard no_grad;
      module->named_parameters()[name].add_(1);
    }
    EXPECT_THAT(message_of<UsageError>([&] { loss.backward(); }),
                HasSubstr("modified by an inplace operation"));
  }
  const auto loss = module->forward(x).sum();
  x.add_(1);
  EXPECT_THAT(message_of<UsageError>([&] { loss.backward(); }), HasSubstr("inplace operation"));
}

TEST(Planned, AnOutputThatNothingReadsMayBeWrittenTo) {
  const auto module = nn::make_module(small_graph());
  const auto x = torch::ones({2, 1, 6, 6});
  module->forward(x).div_(2).sum().backward();
  const auto half = module->named_parameters()["conv.weight"].grad().clone();
  module->zero_grad();
  (module->forward(x) / 2).sum().backward();
  EXPECT_TRUE(torch::equal(module->named_parameters()["conv.weight"].grad(), half));

  const auto input = nn::input({6});
  const auto cut_off = nn::make_module(nn::Graph(input, nn::relu()(nn::linear(5)(input))));
  const auto loss = cut_off->forward(torch::ones({2, 6})).mul_(2).sum();
  EXPECT_THAT(message_of<UsageError>([&] { loss.backward(); }), HasSubstr("inplace operation"));
}

TEST(Planned, AnOutputOfFrozenLayersHasNoGraph) {
  const auto input = nn::input({6});
  const auto x = nn::relu()(nn::linear(5).named("trunk")(input));
  const auto module = nn::make_module(
      nn::Graph({{"in", input}}, {{"features", x}, {"out", nn::linear(2).named("out")(x)}}));
  for (auto& parameter : module->named_parameters())
    if (parameter.key().starts_with("trunk")) parameter->set_requires_grad(false);
  const auto outputs = module->forward_all({torch::ones({3, 6})});
  EXPECT_FALSE(outputs[0].requires_grad());
  EXPECT_TRUE(outputs[1].requires_grad());
}

TEST(Planned, ASecondBackwardNeedsToBeAskedFor) {
  const auto module = nn::make_module(small_graph());
  const auto y = module->forward(torch::ones({2, 1, 6, 6}));
  y.sum().backward({}, /*retain_graph=*/true);
  const auto first = module->named_parameters()["conv.weight"].grad().clone();
  y.sum().backward();
  EXPECT_TRUE(torch::equal(module->named_parameters()["conv.weight"].grad(), first * 2));
  EXPECT_THAT(message_of<UsageError>([&] { y.sum().backward(); }), HasSubstr("retain_graph"));
}

TEST(Planned, ABackwardPassThatMakesAGraphIsAutograds) {
  const auto module = nn::make_module(small_graph());
  const auto loss = module->forward(torch::ones({2, 1, 6, 6})).pow(2).sum();
  const auto weight = module->named_parameters()["out.weight"];
  EXPECT_THAT(message_of<UsageError>([&] {
                torch::autograd::grad({loss}, {weight}, {}, true, /*create_graph=*/true);
              }),
              HasSubstr("set_planned(false)"));
  module->set_planned(false);
  const auto again = module->forward(torch::ones({2, 1, 6, 6})).pow(2).sum();
  EXPECT_TRUE(torch::autograd::grad({again}, {weight}, {}, true, true)[0].requires_grad());
}

TEST(Planned, GradientsOfInputsAreAutograds) {
  const auto module = nn::make_module(small_graph());
  const auto x = torch::ones({2, 1, 6, 6}).requires_grad_();
  module->forward(x).sum().backward();
  EXPECT_TRUE(x.grad().defined());
}

TEST(Planned, NothingStaysOfAForwardPassWithoutBackward) {
  const auto module = nn::make_module(small_graph());
  bool freed = false;
  std::vector<float> memory(72, 1.0F);
  {
    const auto x = torch::from_blob(memory.data(), {2, 1, 6, 6}, [&freed](void*) { freed = true; });
    const auto y = module->forward(x);
    EXPECT_TRUE(y.requires_grad());
  }
  EXPECT_TRUE(freed);
}

TEST(Planned, ABackwardPassOutlivesItsModule) {
  auto module = nn::make_module(small_graph());
  const auto weight = module->named_parameters()["conv.weight"];
  const auto loss = module->forward(torch::ones({2, 1, 6, 6})).sum();
  module.reset();
  loss.backward();
  EXPECT_TRUE(weight.grad().defined());
}

TEST(Planned, WhatIsNotKnownIsNamed) {
  const auto input = nn::input({2, 4, 4});
  const auto normed =
      nn::batch_norm2d({.synchronized = true}).named("norm")(nn::conv2d(3, 1)(input));
  EXPECT_EQ(nn::make_module(nn::Graph(input, nn::flatten()(normed)))->why_not_planned(),
            "batch_norm2d \"norm\"");
}

TEST(Planned, GradientsOfAValueThatManyReadAreAddedAsAutogradDoes) {
  const auto input = nn::input({2, 4, 4});
  const auto x = nn::conv2d(2, 1).named("x")(input);
  const auto three = nn::add(nn::tanh()(x), nn::add(nn::relu()(x), nn::gelu()(x)));
  const nn::Graph graph(input, nn::add(three, nn::add(nn::tanh()(x), nn::add(x, x))));
  EXPECT_EQ(nn::make_module(graph)->why_not_planned(), "");
  expect_planned_is_by_autograd(graph, torch::randn({37, 2, 4, 4}));
}

TEST(Planned, ALayerThatIsAppliedAgainHasTheSumOfItsGradients) {
  const auto input = nn::input({6, 4, 4});
  const auto conv = nn::conv2d(6, 3, {.padding = 1}).named("conv");
  const auto dense = nn::linear(96).named("dense");
  const auto x = dense(nn::relu()(dense(dense(nn::flatten()(conv(nn::tanh()(conv(input))))))));
  const nn::Graph graph(input, x);
  EXPECT_EQ(nn::make_module(graph)->why_not_planned(), "");
  expect_planned_is_by_autograd(graph, torch::randn({5, 6, 4, 4}));
}

TEST(Planned, OutputsMayBeInputsOrOfFrozenLayersOrTheSame) {
  const auto input = nn::input({6});
  const auto fixed = nn::tanh()(nn::linear(4).named("fixed")(input));
  const auto x = nn::linear(3).named("out")(fixed);
  const nn::Graph graph({{"in", input}}, {{"given", input},
                                          {"fixed", fixed},
                                          {"once", x},
                                          {"more", nn::tanh()(nn::add(x, nn::gelu()(x)))},
                                          {"again", x}});
  const auto given = torch::randn({4, 6});
  std::vector<at::Tensor> gradients;
  for (const bool planned : {true, false}) {
    torch::manual_seed(1);
    const auto module = nn::make_module(graph);
    module->set_planned(planned);
    EXPECT_EQ(module->why_not_planned(), "");
    for (auto& parameter : module->named_parameters())
      if (parameter.key().starts_with("fixed")) parameter->set_requires_grad(false);
    const auto outputs = module->forward_all({given});
    EXPECT_EQ(outputs[0].data_ptr(), given.data_ptr());
    EXPECT_FALSE(outputs[0].requires_grad() || outputs[1].requires_grad());
    EXPECT_EQ(outputs[2].data_ptr(), outputs[4].data_ptr());
    (outputs[2].pow(2).sum() + outputs[3].sum() + (outputs[4] * outputs[1].sum()).sin().sum())
        .backward();
    gradients.push_back(module->named_parameters()["out.weight"].grad());
    EXPECT_FALSE(module->named_parameters()["fixed.weight"].grad().defined());
  }
  EXPECT_TRUE(torch::equal(gradients[0], gradients[1]));
}

/// Notes what has been let go of when the last gradient comes.
struct Watch final : detail::GradientListener {
  bool freed = false, freed_before_last = false;
  bool take(const at::Tensor&, const at::Tensor&) override {
    freed_before_last = freed;
    return false;
  }
  void go_on() override {}
};

TEST(Planned, WhatALayerHasKeptGoesWithItsBackward) {
  const auto a = nn::input({8}), b = nn::input({8});
  const auto early = nn::gelu()(nn::linear(4)(a)), late = nn::linear(4)(b);
  const auto module =
      nn::make_module(nn::Graph({{"a", a}, {"b", b}}, {{"sum", nn::add(early, late)}}));
  EXPECT_EQ(module->why_not_planned(), "");
  for (const bool again : {false, true}) {
    std::vector<float> memory(16, 1.0F);
    Watch watch;
    auto given = torch::from_blob(memory.data(), {2, 8}, [&](void*) { watch.freed = true; });
    const auto loss = module->forward_all({torch::ones({2, 8}), given})[0].sum();
    given.reset();
    auto* const source = detail::only_source_of(loss);
    ASSERT_NE(source, nullptr);
    source->listener = &watch;
    loss.backward({}, again);
    source->listener = nullptr;
    EXPECT_EQ(watch.freed_before_last, !again);
    if (again) loss.backward();
    EXPECT_TRUE(watch.freed);
  }
}

}  // namespace
}  // namespace tutti
