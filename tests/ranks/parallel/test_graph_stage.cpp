// Stages of graphs, chained by hand, against the whole module; layers in blocks on 1 rank and on
// several; ties; what is refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <map>
#include <algorithm>
#include <cmath>
#include <mutex>
#include <numeric>

#include "tutti/base/error.h"
#include "tutti/nn/graph_module.h"
#include "tutti/nn/sample_context.h"
#include "tutti/parallel/graph_stage.h"
#include "tutti/sync/tensors.h"

#include "tests/support/message_of.h"
#include "tests/support/random_graph.h"
#include "tests/support/stage_graphs.h"
#include "tests/support/tensor_ranks.h"

namespace tutti::parallel {
namespace {

using test::message_of;
using test::on_tensor_ranks;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

using Tensors = std::map<std::string, at::Tensor>;
using Modules = std::vector<std::shared_ptr<GraphStage>>;

constexpr int64_t kSamples = 3;
constexpr uint64_t kSeed = 11;

/// The same for each call.
std::vector<at::Tensor> inputs_of(const nn::Graph& graph) {
  std::vector<at::Tensor> inputs;
  for (const nn::Port& port : graph.inputs()) {
    auto [shape, dtype] = std::get<nn::op::Input>(graph.nodes()[static_cast<size_t>(port.node)].op);
    shape.insert(shape.begin(), kSamples);
    const int64_t count = std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies());
    const at::Tensor numbers = at::arange(count, at::kLong).view(shape);
    inputs.push_back(dtype == DType::int64 ? at::remainder(numbers * 37 + 5, 65)
                                           : at::sin(numbers.to(at::kFloat) * 0.7));
  }
  return inputs;
}

/// Weights of the loss's sum, so that each output has another gradient.
at::Tensor weights_for(const at::Tensor& output) {
  return at::cos(at::arange(output.numel(), at::kFloat) * 0.3).view(output.sizes());
}

/// What a pass leaves.
struct Pass {
  std::vector<at::Tensor> outputs;
  Tensors weights;  // before it
  Tensors gradients;
  Tensors buffers;  // after it
};

void add_state(Pass& pass, const torch::nn::Module& module) {
  for (const auto& item : module.named_parameters()) {
    pass.weights[item.key()] = item.value().detach().clone();
    pass.gradients[item.key()] = item.value().grad();
  }
  for (const auto& item : module.named_buffers()) pass.buffers[item.key()] = item.value().clone();
}

Pass pass_of_whole(const nn::Graph& graph) {
  torch::manual_seed(kSeed);
  const auto module = nn::make_module(graph);
  module->set_planned(false);
  const nn::SampleContext here({.seed = 3, .step = 2});
  Pass pass{.outputs = module->forward_all(inputs_of(graph))};
  at::Tensor loss = at::zeros({});
  for (const at::Tensor& output : pass.outputs) loss = loss + (output * weights_for(output)).sum();
  loss.backward();
  add_state(pass, *module);
  return pass;
}

Modules modules_of(const nn::Graph& graph, const std::vector<StageRange>& stages,
                   const TensorGroup& group = TensorGroup(), const Plan& plan = {}) {
  Modules modules;
  for (size_t i = 0; i < stages.size(); ++i) {
    torch::manual_seed(kSeed);
    modules.push_back(
        std::make_shared<GraphStage>(graph, stages, static_cast<int>(i), group, plan));
  }
  return modules;
}

/// As a pipeline hands it on: memory of its own, in the order of the dimensions.
at::Tensor sent(const at::Tensor& x) {
  at::Tensor got = x.detach().clone(at::MemoryFormat::Contiguous);
  return got.set_requires_grad(got.is_floating_point());
}

/// Forward through the stages and backward through them, as a pipeline does it.
Pass pass_of_chain(const nn::Graph& graph, const Modules& modules) {
  const nn::SampleContext here({.seed = 3, .step = 2});
  std::vector<std::vector<at::Tensor>> taken, given;
  std::vector<at::Tensor> values = inputs_of(graph);
  for (const auto& module : modules) {
    taken.push_back(values);
    given.push_back(module->forward(values));
    values.clear();
    for (const at::Tensor& x : given.back()) values.push_back(sent(x));
  }
  Pass pass{.outputs = given.back()};
  std::vector<at::Tensor> above;
  for (const at::Tensor& output : pass.outputs) above.push_back(weights_for(output));
  for (size_t stage = modules.size(); stage-- > 0;) {
    std::vector<at::Tensor> roots, gradients;
    for (size_t i = 0; i < above.size(); ++i)
      if (given[stage][i].requires_grad() && above[i].defined()) {
        roots.push_back(given[stage][i]);
        gradients.push_back(above[i]);
      }
    torch::autograd::backward(roots, gradients);
    above.clear();
    for (const at::Tensor& x : taken[stage])
      above.push_back(x.grad().defined() ? x.grad().contiguous() : at::Tensor());
  }
  for (const auto& module : modules) add_state(pass, *module);
  for (const auto& module : modules)
    for (const Tie& tie : module->ties())
      if (module->named_parameters().find(tie.name) == nullptr)
        pass.gradients[tie.name] = pass.gradients[tie.name] + tie.parameter.grad();
  return pass;
}

void expect_same(const Tensors& got, const Tensors& expected, const char* what) {
  ASSERT_EQ(got.size(), expected.size()) << what;
  for (const auto& [name, tensor] : expected) {
    ASSERT_TRUE(got.contains(name)) << what << ' ' << name;
    const at::Tensor& other = got.at(name);
    ASSERT_EQ(other.defined(), tensor.defined()) << what << ' ' << name;
    if (!tensor.defined()) continue;
    EXPECT_TRUE(at::equal(other, tensor)) << what << ' ' << name;
  }
}

void expect_same(const Pass& got, const Pass& expected) {
  ASSERT_EQ(got.outputs.size(), expected.outputs.size());
  for (size_t i = 0; i < got.outputs.size(); ++i)
    EXPECT_TRUE(at::equal(got.outputs[i], expected.outputs[i])) << "output " << i;
  expect_same(got.weights, expected.weights, "initial value of");
  expect_same(got.gradients, expected.gradients, "gradient of");
  expect_same(got.buffers, expected.buffers, "buffer");
}

/// Ranges that the graph can be cut into, with a layer in each.
std::vector<std::vector<StageRange>> all_cuts(const nn::Graph& graph, int stages) {
  const size_t end = graph.nodes().size();
  std::vector<std::vector<StageRange>> all;
  const auto add = [&](std::vector<StageRange> ranges) {
    for (const auto& [from, to] : ranges) {
      bool layer = false;
      for (size_t i = from; i < to; ++i)
        layer |= !std::holds_alternative<nn::op::Input>(graph.nodes()[i].op);
      if (!layer) return;
    }
    all.push_back(std::move(ranges));
  };
  for (size_t first = 1; first < end; ++first) {
    if (stages == 2) add({{0, first}, {first, end}});
    if (stages == 3)
      for (size_t second = first + 1; second < end; ++second)
        add({{0, first}, {first, second}, {second, end}});
  }
  return all;
}

std::string name_of_cut(const nn::Graph& graph, const std::vector<StageRange>& stages) {
  std::string name = "cut before";
  for (size_t i = 1; i < stages.size(); ++i) name += " " + graph.nodes()[stages[i].begin].name;
  return name;
}

// ---- stages ----

struct Case {
  std::string name;
  nn::Graph graph;
};
void PrintTo(const Case& one, std::ostream* stream) { *stream << one.name; }

class Stages : public ::testing::TestWithParam<Case> {};

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
  const auto names_in = [](const torch::nn::Module& module) { return module.named_parameters().keys(); };
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
                      Case{"two_ends", test::two_ends()},
                      Case{"twice", test::applied_twice()},
                      Case{"gpt_tied", test::small_gpt({.dropout = 0.2})},
                      Case{"gpt_own_head", test::small_gpt({.tied = false, .relu = true})},
                      Case{"random_1", test::random_graph(1)},
                      Case{"random_4", test::random_graph(4)},
                      Case{"random_9", test::random_graph(9)}),
    [](const auto& info) { return info.param.name; });

TEST(GraphStage, ValuesGoByToWhoReadsThem) {
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

TEST(GraphStage, TokensThatGoByAreInt64) {
  const auto tokens = nn::input({4}, DType::int64);
  const auto a = nn::embedding(9, 3).named("a")(tokens), b = nn::embedding(9, 3).named("b")(tokens);
  const nn::Graph graph(tokens, nn::add(a, b));
  const auto modules = modules_of(graph, ranges_by_names(graph, {"b"}));
  EXPECT_THAT(modules[1]->inputs(),
              ElementsAre(Border{{4}, DType::int64}, Border{{4, 3}, DType::float32}));
}

TEST(GraphStage, TakesNoSampleToo) {
  const auto graph = test::small_gpt();
  const auto modules =
      modules_of(graph, ranges_by_names(graph, {"transformer.h.1.ln_1"}), TensorGroup(2),
                 default_plan(graph, 2));
  const auto between = modules[0]->forward({at::zeros({0, 7}, at::kLong)});
  EXPECT_EQ(modules[1]->forward(between)[0].sizes(), at::IntArrayRef({0, 7, 65}));
}

TEST(GraphStage, ATieIsOwnedByTheFirstAndCopiedByTheSecond) {
  const auto graph = test::small_gpt();
  const auto modules = modules_of(
      graph, ranges_by_names(graph, {"transformer.h.0.ln_1", "transformer.ln_f"}));
  EXPECT_THAT(modules[1]->ties(), IsEmpty());
  for (const int stage : {0, 2}) {
    const auto& ties = modules[static_cast<size_t>(stage)]->ties();
    ASSERT_EQ(ties.size(), 1);
    EXPECT_EQ(ties[0].name, "transformer.wte.weight");
    EXPECT_EQ(ties[0].owner, 0);
    EXPECT_EQ(ties[0].reader, 2);
    EXPECT_TRUE(ties[0].parameter.requires_grad());
    EXPECT_EQ(modules[static_cast<size_t>(stage)]->named_parameters().contains(
                  "transformer.wte.weight"),
              stage == 0);
  }
  EXPECT_TRUE(at::equal(modules[0]->ties()[0].parameter, modules[2]->ties()[0].parameter));
  EXPECT_TRUE(modules[0]->ties()[0].parameter.is_same(
      modules[0]->named_parameters()["transformer.wte.weight"]));
}

TEST(GraphStage, DrawsAsMuchAsTheModule) {
  const auto graph = test::small_gpt();
  pass_of_whole(graph);
  const at::Tensor after = torch::rand({3});
  modules_of(graph, ranges_by_names(graph, {}));
  EXPECT_TRUE(at::equal(torch::rand({3}), after));
}

// ---- blocks ----

struct Cut {
  Pass pass;
  std::map<std::string, Piece> pieces;
};

std::vector<Cut> passes_in_blocks(const nn::Graph& graph, const Plan& plan, int ranks, int blocks,
                                  const std::vector<StageRange>& stages) {
  // LibTorch's default generator is one for all threads of a process.
  std::mutex drawing;
  return on_tensor_ranks(ranks, blocks, [&](const TensorGroup& group) {
    Cut cut;
    Modules modules;
    {
      const std::lock_guard one(drawing);
      modules = modules_of(graph, stages, group, plan);
    }
    cut.pass = pass_of_chain(graph, modules);
    for (const auto& module : modules) cut.pieces.insert(module->pieces().begin(), module->pieces().end());
    return cut;
  });
}

at::Tensor rank_s(const Cut& rank, const std::string& name, const at::Tensor& whole) {
  const auto piece = rank.pieces.find(name);
  return piece == rank.pieces.end() ? whole : piece_of(whole, piece->second);
}

Tensors pieces_as(const Cut& rank, const Tensors& whole) {
  Tensors pieces;
  for (const auto& [name, tensor] : whole) pieces[name] = rank_s(rank, name, tensor);
  return pieces;
}

void expect_same_pieces(const Cut& rank, const Pass& one) {
  expect_same({rank.pass.outputs, rank.pass.weights, rank.pass.gradients, rank.pass.buffers},
              {one.outputs, pieces_as(rank, one.weights), pieces_as(rank, one.gradients),
               one.buffers});
}

struct BlocksCase {
  std::string name;
  nn::Graph graph;
  Plan plan;  // none: the default
  int blocks = 2;
};
void PrintTo(const BlocksCase& one, std::ostream* stream) { *stream << one.name; }

class InBlocks : public ::testing::TestWithParam<BlocksCase> {};

Plan gpt_plan() {
  return {{"*.wte", rows()},
          {"*.attn.c_attn", columns()},
          {"*.attn.attention", heads()},
          {"*.mlp.c_fc", columns()},
          {"*.c_proj", rows()}};
}
Plan with_head(Plan plan) {
  plan.emplace_back("lm_head", columns());
  return plan;
}

TEST_P(InBlocks, AnyNumberOfRanksAndStagesHasTheSameBits) {
  const auto& [name, graph, given, blocks] = GetParam();
  const Plan plan = given.empty() ? default_plan(graph, blocks) : given;
  const auto whole = ranges_by_names(graph, {});
  const Cut one = passes_in_blocks(graph, plan, 1, blocks, whole)[0];
  EXPECT_THAT(one.pieces, ::testing::Not(IsEmpty()));
  for (int ranks = 2; ranks <= blocks; ++ranks)
    for (const Cut& rank : passes_in_blocks(graph, plan, ranks, blocks, whole)) {
      SCOPED_TRACE(ranks);
      expect_same_pieces(rank, one.pass);
    }
  const auto roles = roles_of(graph, plan, blocks);
  for (const auto& stages : all_cuts(graph, 2)) {
    if (!why_no_cut(graph, roles, stages[1].begin).empty()) continue;
    SCOPED_TRACE(name_of_cut(graph, stages));
    expect_same(passes_in_blocks(graph, plan, 1, blocks, stages)[0].pass, one.pass);
  }
}

TEST_P(InBlocks, StagesOnSeveralRanksHaveTheSameBits) {
  const auto& [name, graph, given, blocks] = GetParam();
  const Plan plan = given.empty() ? default_plan(graph, blocks) : given;
  const auto roles = roles_of(graph, plan, blocks);
  const Cut one = passes_in_blocks(graph, plan, 1, blocks, ranges_by_names(graph, {}))[0];
  const auto cuts = all_cuts(graph, 2);
  const auto middle = std::find_if(cuts.begin() + static_cast<ptrdiff_t>(cuts.size() / 2), cuts.end(),
                                   [&](const auto& stages) {
                                     return why_no_cut(graph, roles, stages[1].begin).empty();
                                   });
  for (const Cut& rank : passes_in_blocks(graph, plan, 2, blocks, *middle))
    expect_same_pieces(rank, one.pass);
}

TEST_P(InBlocks, GradientsAreThoseOfTheWholeModule) {
  const auto& [name, graph, given, blocks] = GetParam();
  const Plan plan = given.empty() ? default_plan(graph, blocks) : given;
  const Pass one =
      passes_in_blocks(graph, plan, 1, blocks, ranges_by_names(graph, {}))[0].pass;
  const Pass whole = pass_of_whole(graph);
  expect_same(one.weights, whole.weights, "initial value of");
  const auto distance = [](const at::Tensor& a, const at::Tensor& b) {
    return (a - b).norm().item<double>();
  };
  for (size_t i = 0; i < whole.outputs.size(); ++i)
    EXPECT_LE(distance(one.outputs[i], whole.outputs[i]), 1e-5 * whole.outputs[i].norm().item<double>());
  double norm = 0;
  for (const auto& item : whole.gradients) norm = std::hypot(norm, item.second.norm().item<double>());
  for (const auto& [parameter, gradient] : whole.gradients)
    EXPECT_LE(distance(one.gradients.at(parameter), gradient), 1e-5 * norm) << parameter;
}

nn::Graph mlp_of_two_outputs() {
  const auto input = nn::input({6});
  const auto hidden = nn::relu()(nn::linear(9).named("up")(input));
  const auto down = nn::relu()(nn::linear(7, {.bias = false}).named("down")(hidden));
  return {{{"x", input}}, {{"hidden", hidden}, {"y", nn::linear(5).named("end")(down)}}};
}

INSTANTIATE_TEST_SUITE_P(
    Graphs, InBlocks,
    ::testing::Values(
        BlocksCase{"gpt_tied", test::small_gpt({.dropout = 0.2}), gpt_plan(), 2},
        BlocksCase{"gpt_own_head", test::small_gpt({.tied = false}), with_head(gpt_plan()), 2},
        BlocksCase{"gpt_in_3", test::small_gpt({.relu = true}), {}, 3},
        BlocksCase{"gpt_own_head_in_3", test::small_gpt({.tied = false}), {}, 3},
        BlocksCase{"mlp_rows_of_a_whole",
                   mlp_of_two_outputs(),
                   {{"up", columns()}, {"down", rows()}, {"end", rows()}},
                   3},
        BlocksCase{"cnn", test::small_cnn(), {}, 2}),
    [](const auto& info) { return info.param.name; });

TEST(GraphStage, WithOneBlockHasTheBitsOfTheModule) {
  const auto graph = test::small_gpt();
  const auto stages = ranges_by_names(graph, {});
  const Modules modules = modules_of(graph, stages, TensorGroup(1), gpt_plan());
  EXPECT_THAT(modules[0]->pieces(), IsEmpty());
  expect_same(pass_of_chain(graph, modules), pass_of_whole(graph));
}

TEST(GraphStage, PiecesSayWhatARankHas) {
  const auto graph = test::small_gpt();
  const auto cut = passes_in_blocks(graph, gpt_plan(), 2, 2, ranges_by_names(graph, {}));
  const auto piece = [&](int rank, const std::string& name) {
    return cut[static_cast<size_t>(rank)].pieces.at(name);
  };
  const Piece words = piece(1, "transformer.wte.weight");
  EXPECT_EQ(words.begin, 33);
  EXPECT_EQ(words.size, 32);
  const Piece stacked = piece(1, "transformer.h.0.attn.c_attn.bias");
  EXPECT_EQ(stacked.stacked, 3);
  EXPECT_EQ(stacked.begin, 12);
  EXPECT_EQ(piece(0, "transformer.h.0.mlp.c_proj.weight").axis, 1);
  EXPECT_FALSE(cut[0].pieces.contains("transformer.h.0.mlp.c_proj.bias")) << "whole on each rank";
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
  return message_of<UsageError>([&] { GraphStage(graph, stages, stage, TensorGroup(blocks), plan); });
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
    return refused_stages(graph, ranges_by_names(graph, {name}), 0, 2, gpt_plan());
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
