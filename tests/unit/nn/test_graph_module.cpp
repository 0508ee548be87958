#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tutti/base/error.h"
#include "tutti/nn/attention.h"
#include "tutti/nn/dense.h"
#include "tutti/nn/detail/batch_norm.h"
#include "tutti/nn/dropout.h"
#include "tutti/nn/graph_module.h"
#include "tutti/nn/sample_context.h"

#include "tests/support/message_of.h"
#include "tests/support/operator_graphs.h"

namespace tutti {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// The same network by hand, in LibTorch's layers, the dense one and batch norm, which
/// test_batch_norm.cpp holds to LibTorch's.
struct HandWritten : torch::nn::Module {
  HandWritten() {
    conv = register_module("conv", torch::nn::Conv2d(torch::nn::Conv2dOptions(2, 4, 3).padding(1)));
    norm = register_module("norm", torch::nn::BatchNorm2d(4));
    dense = register_module("dense", nn::Linear(4 * 3 * 3, 5));
  }
  at::Tensor forward(const at::Tensor& x) {
    const auto planes = conv(x.contiguous(at::MemoryFormat::ChannelsLast));
    auto y = torch::relu(nn::detail::batch_norm(planes, *norm));
    y = torch::max_pool2d(y + torch::relu(y), 2);
    return dense(y.flatten(1));
  }
  torch::nn::Conv2d conv{nullptr};
  torch::nn::BatchNorm2d norm{nullptr};
  nn::Linear dense{nullptr};
};

nn::Graph same_as_graph() {
  const auto input = nn::input({2, 6, 6});
  auto x = nn::conv2d(4, 3, {.padding = 1}).named("conv")(input);
  x = nn::relu()(nn::batch_norm2d().named("norm")(x));
  x = nn::max_pool2d(2)(nn::add(x, nn::relu()(x)));
  return nn::Graph(input, nn::linear(5).named("dense")(nn::flatten()(x)));
}

TEST(GraphModule, IsBitForBitTheHandWrittenModule) {
  torch::manual_seed(3);
  HandWritten by_hand;
  torch::manual_seed(3);
  const auto module = nn::make_module(same_as_graph());
  const auto x = torch::randn({7, 2, 6, 6});
  for (int step = 0; step < 2; ++step) {
    const auto expected = by_hand.forward(x);
    const auto got = module->forward(x);
    EXPECT_TRUE(torch::equal(got, expected));
    expected.pow(2).sum().backward();
    got.pow(2).sum().backward();
  }
  const auto expected = by_hand.named_parameters();
  const auto got = module->named_parameters();
  ASSERT_EQ(got.size(), expected.size());
  for (const auto& parameter : expected) {
    EXPECT_TRUE(torch::equal(got[parameter.key()], parameter.value())) << parameter.key();
    EXPECT_TRUE(torch::equal(got[parameter.key()].grad(), parameter.value().grad()))
        << parameter.key();
  }
  for (const auto& buffer : by_hand.named_buffers()) {
    EXPECT_TRUE(torch::equal(module->named_buffers()[buffer.key()], buffer.value()));
  }
  by_hand.eval();
  module->eval();
  EXPECT_TRUE(torch::equal(module->forward(x), by_hand.forward(x)));
}

/// The fast order and layout against the plain ones: only rounding may differ.
TEST(GraphModule, ConvolutionsAndPoolsAgreeWithThePlainLayout) {
  for (int64_t channels : {1, 3}) {
    torch::manual_seed(4);
    const auto input = nn::input({channels, 9, 8});
    auto x = nn::max_pool2d(2)(nn::relu()(nn::conv2d(4, 3, {.padding = 1}).named("a")(input)));
    x = nn::max_pool2d(2)(nn::relu()(nn::conv2d(6, 3, {.padding = 1}).named("b")(x)));
    const auto module = nn::make_module(nn::Graph(input, nn::flatten()(x)));
    const auto p = module->named_parameters();
    const auto images = torch::randn({5, channels, 9, 8});
    const auto plain = [&](const char* layer, const at::Tensor& in) {
      const std::string name(layer);
      const auto y = torch::conv2d(in, p[name + ".weight"], p[name + ".bias"], 1, 1);
      return torch::max_pool2d(torch::relu(y), 2);
    };
    const auto expected = plain("b", plain("a", images)).flatten(1);
    const auto got = module->forward(images);
    EXPECT_TRUE(torch::allclose(got, expected, 1e-5, 1e-6));
    const auto weights = torch::randn_like(expected);
    const auto wanted = torch::autograd::grad({(expected * weights).sum()}, module->parameters());
    (got * weights).sum().backward();
    for (size_t i = 0; i < wanted.size(); ++i) {
      const auto gradient = module->parameters()[i].grad();
      EXPECT_TRUE(torch::allclose(gradient, wanted[i], 1e-4, 1e-5)) << i;
      EXPECT_TRUE(gradient.is_contiguous()) << i;
    }
  }
}

TEST(GraphModule, AReluLeavesValuesAloneThatOthersRead) {
  const auto input = nn::input({3});
  const auto dense = nn::linear(3)(input);
  const auto graph = nn::Graph(input, nn::add(dense, nn::relu()(dense)));
  const auto module = nn::make_module(graph);
  const auto x = torch::randn({5, 3});
  const auto y = torch::linear(x, module->named_parameters()["linear_1.weight"],
                               module->named_parameters()["linear_1.bias"]);
  EXPECT_TRUE(torch::equal(module->forward(x), y + torch::relu(y)));
}

TEST(GraphModule, EveryLayerMeansWhatLibTorchMeans) {
  const auto input = nn::input({1, 6, 6});
  const auto run = [&](const nn::Value& output, const at::Tensor& x) {
    return nn::make_module(nn::Graph(input, output))->forward(x);
  };
  const auto x = torch::randn({3, 1, 6, 6});
  const auto original = x.clone();
  EXPECT_TRUE(torch::equal(run(nn::relu()(input), x), torch::relu(x)));
  EXPECT_TRUE(torch::equal(x, original)) << "relu wrote over the input";
  EXPECT_TRUE(torch::equal(run(nn::max_pool2d(3, {.stride = 2, .padding = 1})(input), x),
                           torch::max_pool2d(x, 3, 2, 1)));
  EXPECT_TRUE(torch::equal(run(nn::avg_pool2d(2)(input), x), torch::avg_pool2d(x, 2)));
  EXPECT_TRUE(torch::allclose(run(nn::global_avg_pool2d()(input), x), x.mean({2, 3})));
  EXPECT_TRUE(torch::equal(run(nn::softmax()(input), x), torch::softmax(x, -1)));
  EXPECT_TRUE(torch::equal(run(nn::repeat_channels(3)(input), x), torch::cat({x, x, x}, 1)));
  EXPECT_TRUE(torch::equal(run(nn::add(input, input), x), x + x));
  EXPECT_TRUE(torch::equal(run(nn::avg_pool2d(3, {.stride = 1, .padding = 1})(input), x),
                           torch::avg_pool2d(x, 3, 1, 1)));
  EXPECT_TRUE(torch::equal(run(nn::adaptive_avg_pool2d({4, 9})(input), x),
                           torch::adaptive_avg_pool2d(x, {4, 9})));
  EXPECT_TRUE(torch::equal(run(nn::upsample2d(2)(input), x),
                           x.repeat_interleave(2, 2).repeat_interleave(2, 3)));
  EXPECT_TRUE(torch::equal(run(nn::tanh()(input), x), torch::tanh(x)));
  EXPECT_TRUE(torch::equal(run(nn::gelu()(input), x), torch::gelu(x)));
  EXPECT_TRUE(torch::equal(run(nn::concat({input, nn::relu()(input), input}), x),
                           torch::cat({x, torch::relu(x), x}, 1)));
  EXPECT_TRUE(torch::equal(run(nn::to_sequence()(input), x), x.reshape({3, 36, 1})));
  const auto rows = x.reshape({3, 6, 6});
  const auto sequence = nn::input({6, 6});
  const auto read = [&](const nn::Value& output) {
    return nn::make_module(nn::Graph(sequence, output))->forward(rows);
  };
  EXPECT_TRUE(torch::equal(read(nn::first_of_sequence()(sequence)), rows.select(1, 0)));
  EXPECT_TRUE(torch::equal(read(nn::layer_norm({.epsilon = 0.1})(sequence)),
                           torch::layer_norm(rows, {6}, {}, {}, 0.1)));
  EXPECT_TRUE(torch::equal(read(nn::prepend_token()(sequence)),
                           torch::cat({torch::zeros({3, 1, 6}), rows}, 1)));
  EXPECT_TRUE(torch::equal(run(input, x), x));
  const auto cube = nn::relu()(nn::linear(4)(nn::relu()(nn::linear(5)(input))));
  EXPECT_EQ(run(cube, x).sizes(), (std::vector<int64_t>{3, 1, 6, 4}));
  EXPECT_EQ(run(nn::flatten()(input), torch::zeros({0, 1, 6, 6})).sizes(),
            (std::vector<int64_t>{0, 36}));
}

TEST(GraphModule, RowsAndColumnsOfAConvolutionAreTorchs) {
  const auto input = nn::input({2, 7, 9});
  const auto graph =
      nn::Graph(input, nn::conv2d(3, {1, 5}, {.stride = 2, .padding = {0, 2}}).named("c")(input));
  const auto module = nn::make_module(graph);
  const auto x = torch::randn({4, 2, 7, 9});
  const auto p = module->named_parameters();
  const auto expected = torch::conv2d(x, p["c.weight"], p["c.bias"], 2, at::IntArrayRef({0, 2}));
  EXPECT_TRUE(torch::allclose(module->forward(x), expected, 1e-5, 1e-6));
}

TEST(GraphModule, ALayerThatIsOneParameterBearsItsName) {
  torch::manual_seed(2);
  const auto input = nn::input({5, 4});
  auto x = nn::prepend_token().named("token")(input);
  x = nn::add_position().named("encoder.place")(x);
  const auto module = nn::make_module(nn::Graph(input, nn::linear(2).named("encoder.out")(x)));
  const auto p = module->named_parameters();
  std::vector<std::string> names;
  for (const auto& item : p) names.push_back(item.key());
  EXPECT_THAT(names,
              ElementsAre("token", "encoder.place", "encoder.out.weight", "encoder.out.bias"));
  EXPECT_GT(p["encoder.place"].std().item<double>(), 0.01);
  EXPECT_LT(p["encoder.place"].std().item<double>(), 0.03);
  const auto batch = torch::randn({3, 5, 4});
  const auto y = torch::cat({p["token"].expand({3, 1, 4}), batch}, 1) + p["encoder.place"];
  const auto expected = torch::linear(y, p["encoder.out.weight"], p["encoder.out.bias"]);
  EXPECT_TRUE(torch::equal(module->forward(batch), expected));
  module->forward(batch).sum().backward();
  EXPECT_TRUE(p["token"].grad().defined());
  EXPECT_TRUE(p["encoder.place"].grad().defined());
}

TEST(GraphModule, GivesOneTensorForEachOutput) {
  const auto left = nn::input({3});
  const auto right = nn::input({3});
  const auto sum = nn::linear(3).named("dense")(nn::add(left, right));
  const nn::Graph graph({{"left", left}, {"right", right}},
                        {{"positive", nn::relu()(sum)}, {"sum", sum}, {"left", left}});
  const auto module = nn::make_module(graph);
  const auto a = torch::randn({4, 3});
  const auto b = torch::randn({4, 3});
  const auto expected = torch::linear(a + b, module->named_parameters()["dense.weight"],
                                      module->named_parameters()["dense.bias"]);
  const auto got = module->forward_all({a, b});
  ASSERT_EQ(got.size(), 3U);
  EXPECT_TRUE(torch::equal(got[0], torch::relu(expected)));
  EXPECT_TRUE(torch::equal(got[1], expected)) << "relu wrote over an output";
  EXPECT_TRUE(torch::equal(got[2], a));
  const auto says = [&](auto&& call) { return test::message_of<UsageError>(call); };
  EXPECT_THAT(says([&] { module->forward(a); }), HasSubstr("forward_all"));
  EXPECT_THAT(says([&] { module->forward_all({a}); }), HasSubstr("got 1 inputs, expected 2"));
  EXPECT_THAT(says([&] { module->forward_all({a, torch::randn({4, 2})}); }),
              HasSubstr("\"right\" of shape [4, 2]"));
}

/// torch's own module takes [length, batch, features] and as many copies of x as it is told.
TEST(SelfAttention, IsTorchsWithEqualWeights) {
  torch::manual_seed(6);
  nn::SelfAttention attention(12, 3);
  torch::nn::MultiheadAttention oracle(12, 3);
  const torch::NoGradGuard no_grad;
  const auto own = attention->named_parameters();
  EXPECT_GT(own["in_proj_weight"].abs().max().item<double>(), 0.1);
  for (auto& item : oracle->named_parameters()) {
    ASSERT_EQ(own[item.key()].sizes(), item.value().sizes()) << item.key();
    own[item.key()].uniform_(-0.5, 0.5);
    item.value().copy_(own[item.key()]);
  }
  EXPECT_EQ(own.size(), oracle->parameters().size());
  const auto x = torch::randn({4, 5, 12});
  const auto y = x.transpose(0, 1);
  const auto expected = std::get<0>(oracle(y, y, y)).transpose(0, 1);
  EXPECT_TRUE(torch::allclose(attention(x), expected, 1e-4, 1e-5));
  EXPECT_EQ(attention(torch::zeros({0, 5, 12})).sizes(), (std::vector<int64_t>{0, 5, 12}));
  EXPECT_THROW(nn::SelfAttention(12, 5), UsageError);
}

TEST(GraphModule, AnInputOfAnotherShapeIsNamed) {
  const auto module = nn::make_module(same_as_graph());
  try {
    module->forward(torch::zeros({7, 1, 28, 28}));
    FAIL() << "no error";
  } catch (const UsageError& error) {
    EXPECT_THAT(error.what(), HasSubstr("[7, 1, 28, 28]"));
    EXPECT_THAT(error.what(), HasSubstr("[batch, 2, 6, 6]"));
  }
}

TEST(GraphModule, ASharedLayerHasOneParameterAndBothGradients) {
  const auto input = nn::input({2});
  const auto dense = nn::linear(2, {.bias = false}).named("w");
  const auto module = nn::make_module(nn::Graph(input, dense(dense(input))));
  ASSERT_EQ(module->parameters().size(), 1U);
  const auto w = module->parameters()[0];
  const auto x = torch::randn({4, 2});
  module->forward(x).sum().backward();
  const auto v = w.detach().clone().requires_grad_();
  torch::linear(torch::linear(x, v), v).sum().backward();
  EXPECT_TRUE(torch::allclose(w.grad(), v.grad()));
}

TEST(GraphModule, ACloneIsEqualAndItsOwn) {
  torch::manual_seed(1);
  const auto module = nn::make_module(same_as_graph());
  module->forward(torch::randn({4, 2, 6, 6}));
  module->named_parameters()["dense.bias"].set_requires_grad(false);
  module->eval();
  const auto copy = std::dynamic_pointer_cast<nn::GraphModule>(module->clone());
  ASSERT_TRUE(copy);
  const auto x = torch::randn({2, 2, 6, 6});
  const auto before = module->forward(x);
  EXPECT_TRUE(torch::equal(copy->forward(x), before));
  EXPECT_FALSE(copy->named_parameters()["dense.bias"].requires_grad());
  {
    torch::NoGradGuard no_grad;
    for (auto& parameter : copy->parameters()) parameter.zero_();
  }
  EXPECT_TRUE(torch::equal(module->forward(x), before));
}

TEST(GraphModule, FrozenParametersRequireNoGradientAndBeginAsOthers) {
  torch::manual_seed(1);
  const auto plain = nn::make_module(same_as_graph())->named_parameters();
  torch::manual_seed(1);
  const auto frozen = nn::make_module(nn::with_frozen(same_as_graph(), {"conv", "norm.weight"}));
  for (const auto& parameter : frozen->named_parameters()) {
    const std::string& name = parameter.key();
    EXPECT_EQ(parameter.value().requires_grad(), name == "norm.bias" || name.starts_with("dense"))
        << name;
    EXPECT_TRUE(torch::equal(parameter.value(), plain[name])) << name;
  }
  const auto input = nn::input({4, 8});
  const auto placed = nn::add_position().named("place")(input);
  const nn::Graph mixed(input, nn::self_attention(2).named("mix")(placed));
  const auto own =
      nn::make_module(nn::with_frozen(mixed, {"place", "mix.out_proj"}))->named_parameters();
  EXPECT_FALSE(own["place"].requires_grad());
  EXPECT_FALSE(own["mix.out_proj.weight"].requires_grad());
  EXPECT_TRUE(own["mix.in_proj_weight"].requires_grad());
}

// ---- dropout ----

constexpr uint64_t kKey = 1234;

TEST(Dropout, MaskOfARowDoesNotDependOnHowTheBatchIsCut) {
  for (int64_t row_elements : {1, 3, 4, 5, 33}) {
    const int64_t rows = 13;
    std::vector<float> whole(rows * row_elements);
    nn::dropout_mask(kKey, 0.3, 0, rows, row_elements, whole.data());
    for (int replicas : {2, 3, 5}) {
      std::vector<float> parts(whole.size(), -1.0F);
      for (int64_t begin = 0, r = 0; r < replicas; ++r) {
        const int64_t count = rows / replicas + (r < rows % replicas ? 1 : 0);
        nn::dropout_mask(kKey, 0.3, begin, count, row_elements,
                         parts.data() + begin * row_elements);
        begin += count;
      }
      EXPECT_EQ(parts, whole) << replicas << " replicas";
    }
  }
}

TEST(Dropout, ZeroesTheShareItIsToldAndScalesTheRest) {
  std::vector<float> mask(1000 * 100);
  nn::dropout_mask(kKey, 0.25, 0, 1000, 100, mask.data());
  int64_t zeros = 0;
  for (float m : mask) {
    if (m == 0.0F)
      ++zeros;
    else
      ASSERT_FLOAT_EQ(m, 1.0F / 0.75F);
  }
  // 100,000 draws: the standard deviation of the share is 0.0014.
  EXPECT_NEAR(static_cast<double>(zeros) / 1e5, 0.25, 0.007);
}

TEST(Dropout, SeedStepLayerAndRowEachChangeTheMask) {
  nn::Dropout one({.probability = 0.5, .layer = 1});
  nn::Dropout two({.probability = 0.5, .layer = 2});
  const auto x = torch::ones({4, 64});
  const auto draw = [&](nn::Dropout& layer, nn::SamplePlace place) {
    nn::SampleContext here(place);
    return layer(x);
  };
  const auto base = draw(one, {.seed = 7, .step = 3, .first_row = 8});
  EXPECT_TRUE(torch::equal(draw(one, {.seed = 7, .step = 3, .first_row = 8}), base));
  EXPECT_FALSE(torch::equal(draw(one, {.seed = 8, .step = 3, .first_row = 8}), base));
  EXPECT_FALSE(torch::equal(draw(one, {.seed = 7, .step = 4, .first_row = 8}), base));
  EXPECT_FALSE(torch::equal(draw(two, {.seed = 7, .step = 3, .first_row = 8}), base));
  const auto shifted = draw(one, {.seed = 7, .step = 3, .first_row = 9});
  EXPECT_TRUE(torch::equal(shifted.slice(0, 0, 3), base.slice(0, 1, 4)));
  EXPECT_FALSE(torch::equal(shifted, base));
}

TEST(Dropout, UnnumberedLayersAreNumberedByCall) {
  nn::Dropout drop(0.5);
  const auto x = torch::ones({4, 64});
  const auto both = [&] {
    nn::SampleContext here({.seed = 1});
    auto first = drop(x);
    return std::pair{first, drop(x)};
  };
  const auto [a, b] = both();
  EXPECT_FALSE(torch::equal(a, b));
  const auto [c, d] = both();
  EXPECT_TRUE(torch::equal(a, c));
  EXPECT_TRUE(torch::equal(b, d));
}

TEST(Dropout, IsTheIdentityInEvaluationAndPassesGradients) {
  nn::Dropout drop(0.5);
  auto x = torch::randn({3, 2, 5}, torch::requires_grad());
  nn::SampleContext here({.seed = 2});
  const auto y = drop(x);
  y.sum().backward();
  EXPECT_TRUE(torch::equal(x.grad() * x, y));
  EXPECT_EQ(drop(x.to(torch::kBFloat16)).scalar_type(), torch::kBFloat16);
  EXPECT_EQ(drop(torch::ones({0, 3})).sizes(), (std::vector<int64_t>{0, 3}));
  drop->eval();
  EXPECT_TRUE(torch::equal(drop(x), x));
}

TEST(Dropout, WithoutContextOrWithABadProbabilityIsAnError) {
  nn::Dropout drop(0.5);
  EXPECT_THROW(drop(torch::ones({2, 2})), UsageError);
  drop->eval();
  EXPECT_NO_THROW(drop(torch::ones({2, 2})));
  EXPECT_THROW(nn::Dropout(1.0), UsageError);
  EXPECT_THROW(nn::Dropout(-0.1), UsageError);
}

TEST(Dropout, InAGraphEachLayerHasItsOwnMask) {
  const auto input = nn::input({64});
  const auto graph = nn::Graph(input, nn::add(nn::dropout(0.5)(input), nn::dropout(0.5)(input)));
  const auto module = nn::make_module(graph);
  nn::SampleContext here({.seed = 5});
  const auto y = module->forward(torch::ones({8, 64}));
  EXPECT_TRUE((y == 2).any().item<bool>()) << "both layers draw the same mask";
}

TEST(SampleContext, NestsAndEnds) {
  EXPECT_EQ(nn::SampleContext::current(), nullptr);
  {
    nn::SampleContext outer({.step = 1});
    {
      nn::SampleContext inner({.step = 2});
      EXPECT_EQ(nn::SampleContext::current()->place().step, 2);
    }
    EXPECT_EQ(nn::SampleContext::current()->place().step, 1);
  }
  EXPECT_EQ(nn::SampleContext::current(), nullptr);
}

/// Three rows for each input.
std::vector<at::Tensor> rows_for(const nn::Graph& graph) {
  std::vector<at::Tensor> inputs;
  for (const nn::Port& port : graph.inputs()) {
    const auto& input = std::get<nn::op::Input>(graph.nodes()[static_cast<size_t>(port.node)].op);
    const nn::Shape& shape = graph.shape_of(port);
    std::vector<int64_t> sizes{3};
    sizes.insert(sizes.end(), shape.begin(), shape.end());
    inputs.push_back(input.dtype == DType::float32 ? torch::randn(sizes)
                                                   : torch::randint(1, 4, sizes, at::kLong));
  }
  return inputs;
}

TEST(GraphModule, InfersWhatAutogradComputes) {
  for (const auto& [name, graph] : test::operator_graphs()) {
    torch::manual_seed(3);
    const auto module = nn::make_module(graph);
    module->eval();
    module->set_planned(false);
    const auto inputs = rows_for(graph);
    const auto expected = module->forward_all(inputs);
    const at::NoGradGuard no_grad;
    const auto got = module->forward_all(inputs);
    ASSERT_EQ(got.size(), expected.size());
    for (size_t i = 0; i < got.size(); ++i) {
      EXPECT_TRUE(torch::equal(got[i], expected[i])) << name;
      EXPECT_FALSE(got[i].requires_grad()) << name;
      for (const at::Tensor& input : inputs) EXPECT_FALSE(got[i].is_alias_of(input)) << name;
    }
  }
}

TEST(GraphModule, WhatItInfersIsOfTensorsAsAnyOther) {
  const auto input = nn::input({2, 3});
  const auto module = nn::make_module({input, nn::flatten()(input)});
  module->eval();
  const at::Tensor x = torch::rand({4, 2, 3}), before = x.clone();
  at::Tensor y;
  {
    const at::NoGradGuard no_grad;
    y = module->forward(x);
  }
  y.add_(1);
  EXPECT_TRUE(torch::equal(x, before)) << "autograd would not know that it was written to";
  const at::Tensor w = torch::ones({6}, torch::requires_grad());
  (y * w).sum().backward();
  EXPECT_TRUE(torch::equal(w.grad(), y.sum(0))) << "may be saved for a backward pass";
}

TEST(GraphModule, OutputsThatItInfersShareNoMemory) {
  const auto input = nn::input({2, 3});
  const auto h = nn::tanh()(input);
  const auto module = nn::make_module(
      nn::Graph({{"input", input}}, {{"h", h}, {"flat", nn::flatten()(h)}, {"again", h}}));
  module->eval();
  std::vector<at::Tensor> got;
  {
    const at::NoGradGuard no_grad;
    got = module->forward_all({torch::rand({4, 2, 3}) + 1});
  }
  EXPECT_TRUE(got[2].is_same(got[0]));
  const at::Tensor w = torch::ones({6}, torch::requires_grad());
  const at::Tensor sum = (got[1] * w).sum(), expected = got[1].sum(0);
  got[0].zero_();  // autograd would not know that it writes to what is saved
  sum.backward();
  EXPECT_TRUE(torch::equal(w.grad(), expected));
}

TEST(GraphModule, InTrainingWithoutGradientsStatisticsMove) {
  const auto input = nn::input({2, 4, 4});
  const auto module =
      nn::make_module({input, nn::batch_norm2d({.momentum = 0.25}).named("norm")(input)});
  const at::Tensor mean = module->named_buffers()["norm.running_mean"];
  const at::NoGradGuard no_grad;
  const at::Tensor x = torch::rand({3, 2, 4, 4});
  module->forward(x);
  EXPECT_TRUE(torch::allclose(mean, 0.25 * x.mean({0, 2, 3})));
  module->eval();
  const at::Tensor moved = mean.clone();
  module->forward(torch::rand({3, 2, 4, 4}));
  EXPECT_TRUE(torch::equal(mean, moved));
}

}  // namespace
}  // namespace tutti
