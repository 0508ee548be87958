// Layers of a graph in blocks: the same bits on 1 rank and on several, with any cut into stages.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <mutex>

#include "tests/support/stage_chain.h"
#include "tests/support/stage_graphs.h"
#include "tests/support/tensor_ranks.h"

namespace tutti::parallel {
namespace {

using test::all_cuts;
using test::expect_same;
using test::Modules;
using test::modules_of;
using test::name_of_cut;
using test::on_tensor_ranks;
using test::OnOneCore;
using test::Pass;
using test::pass_of_chain;
using test::pass_of_whole;
using ::testing::IsEmpty;
using ::testing::Not;

using GraphBlocks = OnOneCore;

struct Cut {
  Pass pass;
  std::map<std::string, Piece> pieces;
};

std::vector<Cut> passes_in_blocks(const nn::Graph& graph, const Plan& plan, int ranks, int blocks,
                                  const std::vector<StageRange>& stages,
                                  const std::string& engine = "shm") {
  // LibTorch's default generator is one for all threads of a process.
  std::mutex drawing;
  const auto pass = [&](const TensorGroup& group) {
    Cut cut;
    Modules modules;
    {
      const std::lock_guard one(drawing);
      modules = modules_of(graph, stages, group, plan);
    }
    cut.pass = pass_of_chain(graph, modules);
    for (const auto& module : modules)
      cut.pieces.insert(module->pieces().begin(), module->pieces().end());
    return cut;
  };
  return on_tensor_ranks(ranks, blocks, pass, engine);
}

at::Tensor rank_s(const Cut& rank, const std::string& name, const at::Tensor& whole) {
  const auto piece = rank.pieces.find(name);
  return piece == rank.pieces.end() ? whole : piece_of(whole, piece->second);
}

test::Tensors pieces_as(const Cut& rank, const test::Tensors& whole) {
  test::Tensors pieces;
  for (const auto& [name, tensor] : whole) pieces[name] = rank_s(rank, name, tensor);
  return pieces;
}

void expect_same_pieces(const Cut& rank, const Pass& one) {
  expect_same(
      {rank.pass.outputs, rank.pass.weights, rank.pass.gradients, rank.pass.buffers},
      {one.outputs, pieces_as(rank, one.weights), pieces_as(rank, one.gradients), one.buffers});
}

struct BlocksCase {
  std::string name;
  nn::Graph graph;
  Plan plan;  // none: the default
  int blocks = 2;
};
void PrintTo(const BlocksCase& one, std::ostream* stream) { *stream << one.name; }

class InBlocks : public OnOneCore, public ::testing::WithParamInterface<BlocksCase> {};

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
  EXPECT_THAT(one.pieces, Not(IsEmpty()));
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
  const auto middle = std::find_if(
      cuts.begin() + static_cast<ptrdiff_t>(cuts.size() / 2), cuts.end(),
      [&](const auto& stages) { return why_no_cut(graph, roles, stages[1].begin).empty(); });
  for (const Cut& rank : passes_in_blocks(graph, plan, 2, blocks, *middle))
    expect_same_pieces(rank, one.pass);
}

TEST_P(InBlocks, GradientsAreThoseOfTheWholeModule) {
  const auto& [name, graph, given, blocks] = GetParam();
  const Plan plan = given.empty() ? default_plan(graph, blocks) : given;
  const Pass one = passes_in_blocks(graph, plan, 1, blocks, ranges_by_names(graph, {}))[0].pass;
  const Pass whole = pass_of_whole(graph);
  expect_same(one.weights, whole.weights, "initial value of");
  const auto distance = [](const at::Tensor& a, const at::Tensor& b) {
    return (a - b).norm().item<double>();
  };
  for (size_t i = 0; i < whole.outputs.size(); ++i)
    EXPECT_LE(distance(one.outputs[i], whole.outputs[i]),
              1e-5 * whole.outputs[i].norm().item<double>());
  double norm = 0;
  for (const auto& item : whole.gradients)
    norm = std::hypot(norm, item.second.norm().item<double>());
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
    ::testing::Values(BlocksCase{"gpt_tied", test::small_gpt({.dropout = 0.2}), gpt_plan(), 2},
                      BlocksCase{"gpt_own_head", test::small_gpt({.tied = false}),
                                 with_head(gpt_plan()), 2},
                      BlocksCase{"gpt_in_3", test::small_gpt({.relu = true}), {}, 3},
                      BlocksCase{"gpt_own_head_in_3", test::small_gpt({.tied = false}), {}, 3},
                      BlocksCase{"mlp_rows_of_a_whole",
                                 mlp_of_two_outputs(),
                                 {{"up", columns()}, {"down", rows()}, {"end", rows()}},
                                 3},
                      BlocksCase{"cnn", test::small_cnn(), {}, 2}),
    [](const auto& info) { return info.param.name; });

TEST_F(GraphBlocks, AnyEngineHasTheSameBits) {
  const auto graph = test::small_gpt({.tied = false});
  const Plan plan = with_head(gpt_plan());
  const auto whole = ranges_by_names(graph, {});
  const Cut one = passes_in_blocks(graph, plan, 1, 3, whole)[0];
  for (const std::string engine : {"shm staged", "tcp"})
    for (const int ranks : {2, 3})
      for (const Cut& rank : passes_in_blocks(graph, plan, ranks, 3, whole, engine)) {
        SCOPED_TRACE(engine);
        expect_same_pieces(rank, one.pass);
      }
}

TEST_F(GraphBlocks, WithOneBlockHasTheBitsOfTheModule) {
  const auto graph = test::small_gpt();
  const auto stages = ranges_by_names(graph, {});
  const Modules modules = modules_of(graph, stages, TensorGroup(1), gpt_plan());
  EXPECT_THAT(modules[0]->pieces(), IsEmpty());
  expect_same(pass_of_chain(graph, modules), pass_of_whole(graph));
}

TEST_F(GraphBlocks, PiecesSayWhatARankHas) {
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

}  // namespace
}  // namespace tutti::parallel
