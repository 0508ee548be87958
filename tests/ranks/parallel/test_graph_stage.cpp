// Stages of graphs, chained by hand, against the whole module; ties; what is refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>

#include "tutti/base/error.h"
#include "tutti/nn/lambda.h"
#include "tutti/parallel/model/layer_costs.h"

#include "tests/support/message_of.h"
#include "tests/support/random_graph.h"
#include "tests/support/stage_chain.h"
#include "tests/support/stage_graphs.h"

namespace tutti::parallel {
namespace {

using test::all_cuts;
using test::expect_same;
using test::inputs_of;
using test::message_of;
using test::modules_of;
using test::name_of_cut;
using test::OnOneCore;
using test::pass_of_chain;
using test::pass_of_whole;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

struct Case {
  std::string name;
  nn::Graph graph;
};
void PrintTo(const Case& one, std::ostream* stream) { *stream << one.name; }

using GraphStages = OnOneCore;

class Stages : public OnOneCore, public ::testing::WithParamInterface<Case> {};

TEST_P(Stages, OneHasTheBitsOfTheModule) {
  const nn::Graph& graph = GetParam().graph;
  expect_same(pass_of_chain(graph, modules_of(graph, ranges_by_names(graph, {}))),
              pass_of_whole(graph));
}

TEST_P(Stages, AllCutsHaveTheBitsOfTheModule) {
  const nn::Graph& graph = GetParam().graph;
  const Pass expected = pass_of_whole(graph);
  for (const int count : {2, 3})
    for (const auto& stages : all_cuts(graph, count)) {
      SCOPED_TRACE(name_of_cut(graph, stages));
      expect_same(pass_of_chain(graph, modules_of(graph, stages)), expected);
    }
}

TEST_P(Stages, ParametersStandInTheOrderOfTheModule) {
  const nn::Graph& graph = GetParam().graph;
  const auto names_in = [](const torch::nn::Module& module) {
    return module.named_parameters().keys();
  };
  const auto whole = names_in(*nn::make_module(graph));
  for (const auto& stages : all_cuts(graph, 2))
    for (const auto& module : modules_of(graph, stages)) {
      const auto own = names_in(*module);
      std::vector<std::string> expected;
      for (const std::string& name : whole)
        if (std::ranges::count(own, name) > 0) expected.push_back(name);
      EXPECT_EQ(own, expected) << name_of_cut(graph, stages);
    }
}

INSTANTIATE_TEST_SUITE_P(
    Graphs, Stages,
    ::testing::Values(Case{"cnn", test::small_cnn()}, Case{"cnn_of_orders", test::cnn_of_orders()},
                      Case{"images_of_orders", test::images_of_orders()},
                      Case{"orders_of_gradients", test::orders_of_gradients()},
                      Case{"moved_tokens", test::moved_tokens()},
                      Case{"sequences", test::sequences()}, Case{"two_ends", test::two_ends()},
                      Case{"twice", test::applied_twice()},
                      Case{"gpt_tied", test::small_gpt({.dropout = 0.2})},
                      Case{"gpt_own_head", test::small_gpt({.tied = false, .relu = true})},
                      Case{"random_1", test::random_graph(1)},
                      Case{"random_4", test::random_graph(4)},
                      Case{"random_9", test::random_graph(9)}),
    [](const auto& info) { return info.param.name; });

TEST_F(GraphStages, ValuesGoByToWhoReadsThem) {
  const auto graph = test::two_ends();
  const auto modules = modules_of(graph, ranges_by_names(graph, {"b", "late"}));
  const auto shapes = [](const std::vector<Border>& borders) {
    std::vector<std::vector<int64_t>> all;
    for (const Border& border : borders) all.push_back(border.shape);
    return all;
  };
  using Shape = std::vector<int64_t>;
  EXPECT_THAT(shapes(modules[0]->inputs()), ElementsAre(Shape{4}, Shape{3}));
  EXPECT_THAT(shapes(modules[0]->outputs()), ElementsAre(Shape{3}, Shape{6}, Shape{2}));
  EXPECT_EQ(modules[1]->inputs(), modules[0]->outputs());
  EXPECT_THAT(shapes(modules[2]->inputs()), ElementsAre(Shape{2}, Shape{14}));
  EXPECT_THAT(shapes(modules[2]->outputs()), ElementsAre(Shape{3}, Shape{2}));
  const Stage first = stage_of(modules[0]), last = stage_of(modules[2]);
  EXPECT_THAT(first.inputs, IsEmpty());
  EXPECT_THAT(last.outputs, IsEmpty());
  const auto inputs = inputs_of(graph);
  EXPECT_TRUE(first.forward(inputs)[0].is_same(inputs[1])) << "goes by as it is";
}

TEST_F(GraphStages, TokensThatGoByAreInt64) {
  const auto tokens = nn::input({4}, DType::int64);
  const auto a = nn::embedding(9, 3).named("a")(tokens), b = nn::embedding(9, 3).named("b")(tokens);
  const nn::Graph graph(tokens, nn::add(a, b));
  const auto modules = modules_of(graph, ranges_by_names(graph, {"b"}));
  EXPECT_THAT(modules[1]->inputs(),
              ElementsAre(Border{{4}, DType::int64}, Border{{4, 3}, DType::float32}));
}

/// Between two norms and a reader that wants rows, cut behind and before it.
TEST_F(GraphStages, ActivationsHaveTheBitsOfTheModuleBesideEveryCut) {
  for (const nn::Layer& layer :
       {nn::relu(),        nn::relu6(),     nn::batch_norm2d(),  nn::gelu(),
        nn::tanh(),        nn::sigmoid(),   nn::leaky_relu(0.2), nn::elu(),
        nn::selu(),        nn::silu(),      nn::hard_sigmoid(),  nn::hard_swish(),
        nn::softplus(),    nn::mish(),      nn::upsample2d(2),   nn::dropout(0.3),
        nn::log_softmax(), nn::slice(1, 5), nn::max_pool2d(2),   nn::avg_pool2d(2)}) {
    const auto input = nn::input({3, 7, 6});
    const auto x = nn::batch_norm2d()(nn::conv2d(4, 3, {.padding = 1})(input));
    const nn::Graph graph(input, nn::linear(2)(nn::group_norm(2)(layer(x))));
    const Pass expected = pass_of_whole(graph);
    for (const auto& stages : all_cuts(graph, 2)) {
      SCOPED_TRACE(graph.nodes()[3].name + ", " + name_of_cut(graph, stages));
      expect_same(pass_of_chain(graph, modules_of(graph, stages)), expected);
    }
  }
}

/// Whatever the order of what it reads.
TEST_F(GraphStages, NormsHaveTheBitsOfTheModuleBesideEveryCut) {
  const auto input = nn::input({4, 7, 6});
  const auto norm = [](const nn::Value& x) { return nn::batch_norm2d()(x); };
  const auto rows = nn::group_norm(2)(norm(nn::tanh()(norm(input))));
  const auto means = nn::global_avg_pool2d()(nn::tanh()(norm(rows)));
  const auto whole = nn::global_avg_pool2d()(norm(nn::slice(1, 5)(rows)));
  const nn::Graph graph(input, nn::linear(2)(nn::concat({means, whole})));
  const Pass expected = pass_of_whole(graph);
  for (const auto& stages : all_cuts(graph, 2)) {
    SCOPED_TRACE(name_of_cut(graph, stages));
    expect_same(pass_of_chain(graph, modules_of(graph, stages)), expected);
  }
}

TEST_F(GraphStages, ALambdasGradientIsInTheOrderOfItsInput) {
  const auto input = nn::input({3, 6, 6});
  const auto turned = nn::lambda("turned", {6, 6, 4}, [](at::TensorList in) {
    return in[0].permute({0, 2, 3, 1}).contiguous();
  });
  const auto x = nn::batch_norm2d()(nn::conv2d(4, 3, {.padding = 1})(input));
  const nn::Graph graph(input, nn::linear(2)(turned(x)));
  const Pass expected = pass_of_whole(graph);
  for (const auto& stages : all_cuts(graph, 2)) {
    SCOPED_TRACE(name_of_cut(graph, stages));
    expect_same(pass_of_chain(graph, modules_of(graph, stages)), expected);
  }
}

/// Which a lambda makes: of the dtype that it says.
TEST_F(GraphStages, ValuesAtACutHaveTheDtypeThatLayersGiveThem) {
  const auto input = nn::input({6});
  const auto places = nn::lambda(
      "places", {6}, [](at::TensorList in) { return in[0].argsort(int64_t{1}, false); },
      DType::int64);
  const auto words = nn::embedding(9, 3).named("words")(places.named("places")(input));
  const auto sequence = nn::gru(2, {.sequences = true}).named("cell")(words);
  const nn::Graph graph(input, nn::linear(2).named("head")(sequence));
  const auto modules = modules_of(graph, ranges_by_names(graph, {"words", "cell"}));
  EXPECT_THAT(modules[1]->inputs(), ElementsAre(Border{{6}, DType::int64}));
  EXPECT_THAT(modules[2]->inputs(), ElementsAre(Border{{6, 3}, DType::float32}));
  expect_same(pass_of_chain(graph, modules), pass_of_whole(graph));
  EXPECT_THAT(modules_of(test::moved_tokens(), ranges_by_names(test::moved_tokens(), {"first"}))[1]
                  ->inputs(),
              ElementsAre(Border{{3, 2}, DType::int64}, Border{{4, 3}, DType::float32}));
}

TEST_F(GraphStages, LayersAreMeasuredOnValuesOfTheirDtype) {
  const nn::Graph graph = test::moved_tokens();
  const parallel::Cuts cuts(graph, std::vector<NodeRole>(graph.nodes().size()));
  EXPECT_EQ(cuts.measured(2).size(), 4U);
}

TEST_F(GraphStages, TakesNoSampleToo) {
  const auto graph = test::small_gpt();
  const auto modules = modules_of(graph, ranges_by_names(graph, {"transformer.h.1.ln_1"}),
                                  TensorGroup(2), default_plan(graph, 2));
  const auto between = modules[0]->forward({at::zeros({0, 7}, at::kLong)});
  EXPECT_EQ(modules[1]->forward(between)[0].sizes(), at::IntArrayRef({0, 7, 65}));
}

TEST_F(GraphStages, ATieIsOwnedByTheFirstAndCopiedByTheSecond) {
  const auto graph = test::small_gpt();
  const auto modules =
      modules_of(graph, ranges_by_names(graph, {"transformer.h.0.ln_1", "transformer.ln_f"}));
  EXPECT_THAT(modules[1]->ties(), IsEmpty());
  for (const int stage : {0, 2}) {
    const auto& ties = modules[static_cast<size_t>(stage)]->ties();
    ASSERT_EQ(ties.size(), 1);
    EXPECT_EQ(ties[0].name, "transformer.wte.weight");
    EXPECT_EQ(ties[0].owner, 0);
    EXPECT_EQ(ties[0].reader, 2);
    EXPECT_TRUE(ties[0].parameter.requires_grad());
    EXPECT_EQ(
        modules[static_cast<size_t>(stage)]->named_parameters().contains("transformer.wte.weight"),
        stage == 0);
  }
  EXPECT_TRUE(at::equal(modules[0]->ties()[0].parameter, modules[2]->ties()[0].parameter));
  EXPECT_TRUE(modules[0]->ties()[0].parameter.is_same(
      modules[0]->named_parameters()["transformer.wte.weight"]));
}

TEST_F(GraphStages, GroupsStandInTheOrderOfTheWholeGraph) {
  const auto input = nn::input({4});
  auto x = nn::linear(4, {.bias = false}).named("a.first")(input);
  x = nn::linear(4, {.bias = false}).named("b.only")(x);
  const nn::Graph graph(input, nn::linear(4, {.bias = false}).named("a.second")(x));
  const auto modules = modules_of(graph, ranges_by_names(graph, {"b.only"}));
  EXPECT_THAT(nn::make_module(graph)->named_parameters().keys(),
              ElementsAre("a.first.weight", "a.second.weight", "b.only.weight"));
  EXPECT_THAT(modules[1]->named_parameters().keys(),
              ElementsAre("a.second.weight", "b.only.weight"));
}

TEST_F(GraphStages, DrawsAsMuchAsTheModule) {
  const auto graph = test::small_gpt();
  pass_of_whole(graph);
  const at::Tensor after = torch::rand({3});
  using Cuts = std::vector<std::string>;
  for (const Cuts& cuts : {Cuts{}, Cuts{"transformer.ln_f"}}) {
    modules_of(graph, ranges_by_names(graph, cuts));
    EXPECT_TRUE(at::equal(torch::rand({3}), after));
  }
}

// ---- errors ----

std::string refused(const nn::Graph& graph, const std::vector<std::string>& names) {
  return message_of<UsageError>([&] { ranges_by_names(graph, names); });
}

TEST(StageErrors, CutsByName) {
  const auto graph = test::small_gpt();
  EXPECT_THAT(refused(graph, {"transformer.h.1.ln1"}),
              HasSubstr("no layer \"transformer.h.1.ln1\" to be cut before; did you mean "
                        "\"transformer.h.1.ln_1\"?"));
  EXPECT_THAT(refused(graph, {"tokens"}), HasSubstr("no layer \"tokens\""));
  EXPECT_THAT(refused(graph, {"transformer.ln_f", "transformer.ln_f"}),
              HasSubstr("two cuts are before layer \"transformer.ln_f\""));
  EXPECT_THAT(refused(graph, {"transformer.h.1.ln_1", "transformer.h.0.ln_1"}),
              HasSubstr("before layer \"transformer.h.1.ln_1\", the next one before "
                        "\"transformer.h.0.ln_1\", which comes earlier"));
  EXPECT_THAT(refused(graph, {"transformer.wte"}), HasSubstr("stage 0 of 2 has no layer"));
  EXPECT_THAT(refused(test::applied_twice(), {"a", "b", "c", "d", "e", "f"}),
              HasSubstr("6 cuts make 7 stages, the graph has 5 layers"));
}

std::string refused_stages(const nn::Graph& graph, const std::vector<StageRange>& stages,
                           int stage = 0, int blocks = 1, const Plan& plan = {}) {
  return message_of<UsageError>(
      [&] { GraphStage(graph, stages, stage, TensorGroup(blocks), plan); });
}

TEST(StageErrors, RangesThatAreNotTheGraph) {
  const auto graph = test::applied_twice();
  EXPECT_THAT(refused_stages(graph, {{0, 2}, {3, 6}}),
              HasSubstr("stage 1 of 2 is nodes 3 to before 6 of 6; expected it to begin at 2"));
  EXPECT_THAT(refused_stages(graph, {{0, 4}}), HasSubstr("they end before node 4 of 6"));
  EXPECT_THAT(refused_stages(graph, {{0, 7}}), HasSubstr("nodes 0 to before 7 of 6"));
  EXPECT_THAT(refused_stages(graph, {}), HasSubstr("they end before node 0 of 6"));
  EXPECT_THAT(refused_stages(graph, {{0, 6}}, 1), HasSubstr("there is no stage 1 of 1"));
}

TEST(StageErrors, ACutBetweenColumnsAndRowsNamesThem) {
  const auto graph = test::small_gpt();
  const auto at = [&](const std::string& name) {
    return refused_stages(graph, ranges_by_names(graph, {name}), 0, 2, default_plan(graph, 2));
  };
  EXPECT_THAT(at("transformer.h.0.mlp.act"),
              AllOf(HasSubstr("a cut before layer transformer.h.0.mlp.act lies between layer "
                              "transformer.h.0.mlp.c_fc, cut into blocks, and layer "
                              "transformer.h.0.mlp.act, which reads them"),
                    HasSubstr("cut before transformer.h.0.mlp.c_fc or after")));
  EXPECT_THAT(at("transformer.h.1.attn.c_proj"), HasSubstr("transformer.h.1.attn.attention"));
}

TEST(StageErrors, ALayerOfThreeStagesAndNormsOfTwo) {
  const auto input = nn::input({4});
  const auto thrice = nn::linear(4).named("thrice");
  const nn::Graph graph(input, thrice(nn::tanh()(thrice(nn::tanh()(thrice(input))))));
  EXPECT_THAT(refused_stages(graph, {{0, 2}, {2, 4}, {4, 6}}),
              HasSubstr("layer thrice is applied in stages 0, 1, 2; its parameters can be in two"));
  const auto image = nn::input({2, 3, 3});
  const auto norm = nn::batch_norm2d().named("norm");
  EXPECT_THAT(refused_stages({image, norm(nn::tanh()(norm(image)))}, {{0, 2}, {2, 4}}),
              HasSubstr("layer norm is applied in stages 0, 1, and has running statistics"));
}

TEST(StageErrors, InputsOfAnotherShape) {
  const auto graph = test::two_ends();
  const auto modules = modules_of(graph, ranges_by_names(graph, {"b"}));
  EXPECT_THAT(message_of<UsageError>([&] { modules[1]->forward({at::ones({2, 3})}); }),
              HasSubstr("got 1 inputs, expected 3"));
  EXPECT_THAT(message_of<UsageError>([&] {
                modules[1]->forward({at::ones({2, 3}), at::ones({2, 5}), at::ones({2, 2})});
              }),
              HasSubstr("got an input \"relu_1\" of shape [2, 5], expected [batch, 6]"));
}

}  // namespace
}  // namespace tutti::parallel
