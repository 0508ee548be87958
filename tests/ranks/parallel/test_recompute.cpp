// What is computed again in backward: which layers, and that no bit depends on it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tutti/base/error.h"
#include "tutti/parallel/stages/detail/layer_spans.h"
#include "tutti/parallel/stages/pipeline.h"
#include "tutti/parallel/stages/sequential_stages.h"

#include "tests/support/message_of.h"
#include "tests/support/stage_chain.h"
#include "tests/support/stage_graphs.h"

namespace tutti::parallel {
namespace {

using detail::layer_spans;
using detail::LayerSpan;
using detail::LayerUnit;
using test::message_of;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(RecomputeChoice, ReadsWords) {
  const auto of = [](const char* word) { return recompute_choice(word).of; };
  EXPECT_EQ(of("none"), Recompute::Of::nothing);
  EXPECT_EQ(of("full"), Recompute::Of::stages);
  EXPECT_EQ(of("blocks"), Recompute::Of::blocks);
  EXPECT_EQ(recompute_choice("every:3").every, 3);
  EXPECT_THAT(recompute_choice("*.mlp.*,lm_head").names, ElementsAre("*.mlp.*", "lm_head"));
  for (const char* word : {"every:0", "every:x", "every:-1", "every:"})
    EXPECT_THAT(message_of<UsageError>([&] { recompute_choice(word); }),
                HasSubstr("expected every:K"));
  for (const char* word : {"", ","})
    EXPECT_THAT(message_of<UsageError>([&] { recompute_choice(word); }), HasSubstr("got nothing"));
}

/// Names with a * have no parameters.
std::vector<LayerUnit> units_of(const std::vector<std::string>& names) {
  std::vector<LayerUnit> units;
  for (const std::string& name : names) {
    const bool bare = name.starts_with('*');
    units.push_back({.name = bare ? name.substr(1) : name, .parameters = bare ? nullptr : &name});
  }
  return units;
}
constexpr bool kAgain = true, kKept = false;

TEST(LayerSpans, OfBlocksEndWhereLayersWithParametersAreOfNone) {
  const std::vector<std::string> names{"wte",   "h.0.ln", "h.0.fc", "*add", "h.1.ln",
                                       "h.1.2", "*add_1", "ln_f",   "*relu"};
  EXPECT_THAT(layer_spans(units_of(names), Recompute::blocks()),
              ElementsAre(LayerSpan{0, 1, kKept}, LayerSpan{1, 4, kAgain}, LayerSpan{4, 7, kAgain},
                          LayerSpan{7, 9, kKept}));
}

TEST(LayerSpans, OfRunsHaveSoManyLayersWithParameters) {
  const std::vector<std::string> names{"*flatten", "a", "*relu", "b", "*relu_1", "c", "*relu_2"};
  EXPECT_THAT(
      layer_spans(units_of(names), Recompute::every_layers(1)),
      ElementsAre(LayerSpan{0, 3, kAgain}, LayerSpan{3, 5, kAgain}, LayerSpan{5, 7, kAgain}));
  EXPECT_THAT(layer_spans(units_of(names), Recompute::every_layers(2)),
              ElementsAre(LayerSpan{0, 5, kAgain}, LayerSpan{5, 7, kAgain}));
  EXPECT_THAT(layer_spans(units_of(names), Recompute::every_layers(9)),
              ElementsAre(LayerSpan{0, 7, kAgain}));
  auto units = units_of(names);
  units[3].no_cut = "columns and rows";
  EXPECT_THAT(layer_spans(units, Recompute::every_layers(1)),
              ElementsAre(LayerSpan{0, 5, kAgain}, LayerSpan{5, 7, kAgain}));
}

TEST(LayerSpans, OfPatternsAreRunsThatFitTheSame) {
  const std::vector<std::string> names{"a.fc", "a.act", "b.fc", "c", "b.act"};
  EXPECT_THAT(layer_spans(units_of(names), Recompute::layers({"a.*", "b.*"})),
              ElementsAre(LayerSpan{0, 2, kAgain}, LayerSpan{2, 3, kAgain}, LayerSpan{3, 4, kKept},
                          LayerSpan{4, 5, kAgain}));
  EXPECT_THAT(layer_spans(units_of(names), Recompute::layers({"elsewhere"})),
              ElementsAre(LayerSpan{0, 5, kKept}));
}

TEST(LayerSpans, AreOneOfAStageThatIsAll) {
  const std::vector<std::string> names{"a", "h.0.b"};
  EXPECT_THAT(layer_spans(units_of(names), Recompute::none()), ElementsAre(LayerSpan{0, 2, kKept}));
  EXPECT_THAT(layer_spans(units_of(names), Recompute::full()),
              ElementsAre(LayerSpan{0, 2, kAgain}));
}

TEST(LayerSpans, RefuseWhatIsNotThere) {
  const std::vector<std::string> names{"up", "down", "again"};
  const auto refusal = [&](const Recompute& recompute) {
    return message_of<UsageError>([&] { detail::require_layers(names, recompute); });
  };
  EXPECT_THAT(refusal(Recompute::blocks()), HasSubstr("the model has no blocks"));
  EXPECT_THAT(refusal(Recompute::layers({"dwn"})), HasSubstr("did you mean \"down\"?"));
  const auto spans = [](const std::vector<LayerUnit>& units, const Recompute& recompute) {
    return message_of<UsageError>([&] { layer_spans(units, recompute); });
  };
  EXPECT_THAT(spans(units_of(names), Recompute::every_layers(0)), HasSubstr("expected 1 or more"));
  auto units = units_of(names);
  units[1].no_cut = "layer up is cut into columns";
  EXPECT_THAT(spans(units, Recompute::layers({"down"})),
              HasSubstr("down cannot be computed again apart from up: layer up is cut"));
  for (LayerUnit& unit : units) unit = {.name = "same", .parameters = names.data()};
  EXPECT_EQ(layer_spans(units, Recompute::every_layers(1)).size(), 3);
  EXPECT_THAT(spans(units, Recompute::every_layers(2)),
              HasSubstr("layer same is applied twice in what is computed together"));
}

/// Gradients of one microbatch by a pipeline of one rank.
test::Tensors gradients_by(const nn::Graph& graph, const Recompute& recompute, bool split) {
  const auto module = test::modules_of(graph, ranges_by_names(graph, {}))[0];
  const auto schedule = mesh::schedule_by_name(split ? "zb-h1" : "1f1b", {.microbatches = 2});
  Pipeline pipeline(Group(), schedule, {stage_of(module, recompute)}, {});
  const auto sums = pipeline.step({.sizes = {test::kSamples, 0},
                                   .inputs = [&](int) { return test::inputs_of(graph); },
                                   .loss =
                                       [](int, at::TensorList outputs) {
                                         at::Tensor loss = at::zeros({});
                                         for (const at::Tensor& y : outputs)
                                           loss = loss + (y * test::weights_for(y)).sum();
                                         return loss;
                                       },
                                   .place = nn::SamplePlace{.seed = 3, .step = 2}})[0];
  test::Tensors named;
  const auto names = module->named_parameters().keys();
  for (size_t i = 0; i < names.size(); ++i) named[names[i]] = sums.at(i);
  return named;
}

using RecomputeOfGraphs = test::OnOneCore;

TEST_F(RecomputeOfGraphs, HasTheBitsOfTheModule) {
  const std::vector<std::pair<nn::Graph, std::vector<Recompute>>> cases{
      {test::small_gpt({.dropout = 0.2}),
       {Recompute::blocks(), Recompute::layers({"*.mlp.*"}),
        Recompute::layers({"transformer.wte", "*.h.1.*"})}},
      {test::small_gpt({.tied = false, .relu = true}), {Recompute::blocks()}},
      {test::two_ends(), {Recompute::layers({"b", "late"})}},
      {test::applied_twice(), {}}};
  for (auto [graph, choices] : cases) {
    for (const int layers : {1, 2, 3}) choices.push_back(Recompute::every_layers(layers));
    choices.push_back(Recompute::full());
    const auto expected = test::pass_of_whole(graph).gradients;
    for (size_t i = 0; i < choices.size(); ++i)
      for (const bool split : {false, true}) {
        SCOPED_TRACE(graph.nodes().back().name + ", choice " + std::to_string(i));
        test::expect_same(gradients_by(graph, choices[i], split), expected, "gradients");
      }
  }
}

TEST_F(RecomputeOfGraphs, LeavesBatchNormsInPlace) {
  const auto graph = test::small_cnn();
  EXPECT_THAT(
      message_of<UsageError>([&] { gradients_by(graph, Recompute::every_layers(1), false); }),
      HasSubstr("running statistics"));
  std::vector<std::string> convolutions;
  for (const nn::Node& node : graph.nodes())
    if (std::holds_alternative<nn::op::Conv2d>(node.op)) convolutions.push_back(node.name);
  ASSERT_FALSE(convolutions.empty());
  test::expect_same(gradients_by(graph, Recompute::layers(convolutions), false),
                    test::pass_of_whole(graph).gradients, "gradients");
}

/// Counts its forward passes.
struct CountingImpl : torch::nn::Module {
  CountingImpl(int& passes) : passes(passes) { linear = register_module("linear", linear); }
  at::Tensor forward(const at::Tensor& x) {
    ++passes;
    return linear(x);
  }
  int& passes;
  torch::nn::Linear linear{3, 3};
};
TORCH_MODULE(Counting);

TEST(RecomputeOfSequentials, RunsAgainWhatItIsToldTo) {
  const auto passes_with = [](const Recompute& recompute) {
    std::vector<int> passes(4);
    torch::nn::Sequential net;
    for (int& one : passes) net->push_back(Counting(one));
    auto stages = sequential_stages(net, {.shape = {3}}, {0, 4}, recompute);
    passes.assign(4, 0);
    Pipeline(Group(), mesh::gpipe({.microbatches = 2}), stages, {})
        .step({.sizes = {1, 1},
               .inputs = [](int) { return std::vector{at::ones({1, 3})}; },
               .loss = [](int, at::TensorList y) { return y[0].sum(); }});
    return passes;
  };
  EXPECT_THAT(passes_with(Recompute::none()), ElementsAre(2, 2, 2, 2));
  // Nobody waits for the last ones' outputs.
  EXPECT_THAT(passes_with(Recompute::full()), ElementsAre(2, 2, 2, 2));
  EXPECT_THAT(passes_with(Recompute::every_layers(2)), ElementsAre(4, 4, 2, 2));
  EXPECT_THAT(passes_with(Recompute::layers({"0", "2"})), ElementsAre(4, 2, 4, 2));
  EXPECT_THAT(message_of<UsageError>([&] { passes_with(Recompute::layers({"4"})); }),
              HasSubstr("matches no layer"));
}

TEST(RecomputeOfSequentials, RefusesParametersOfTwoChildren) {
  using torch::nn::Linear, torch::nn::Sequential;
  const Linear shared(3, 3);
  const auto refusal = [](const Sequential& net, const Recompute& recompute) {
    return message_of<UsageError>(
        [&] { sequential_stages(net, {.shape = {3}}, {0, net->size()}, recompute); });
  };
  EXPECT_THAT(refusal(Sequential(shared, torch::nn::Tanh(), shared), Recompute::every_layers(1)),
              HasSubstr("2.weight is a parameter of child 0 too"));
  sequential_stages(Sequential(shared, torch::nn::Tanh(), shared), {.shape = {3}}, {0, 3},
                    Recompute::full());
}

// Again would be on other numbers.
TEST(RecomputeOfSequentials, RefusesWhatWritesIntoItsInput) {
  const auto step = [](const Recompute& recompute) {
    torch::nn::Sequential net(torch::nn::Linear(3, 3),
                              torch::nn::ReLU(torch::nn::ReLUOptions(true)),
                              torch::nn::Linear(3, 3));
    Pipeline(Group(), mesh::gpipe({.microbatches = 2}),
             sequential_stages(net, {.shape = {3}}, {0, 3}, recompute), {})
        .step({.sizes = {1, 1},
               .inputs = [](int) { return std::vector{at::ones({1, 3})}; },
               .loss = [](int, at::TensorList y) { return y[0].sum(); }});
  };
  for (const char* again : {"0", "1"})
    EXPECT_THAT(message_of<UsageError>([&] { step(Recompute::layers({again})); }),
                HasSubstr("span 1 of stage 0 (rank 0) writes into its inputs"));
  step(Recompute::layers({"2"}));
}

}  // namespace
}  // namespace tutti::parallel
