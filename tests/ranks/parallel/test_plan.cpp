// Plans: the role of each layer, plans by a graph's form, and what is refused, by text.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "tutti/base/error.h"
#include "tutti/parallel/tensor/plan.h"

#include "tests/support/message_of.h"
#include "tests/support/stage_graphs.h"

namespace tutti::parallel {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;

std::map<std::string, NodeRole> roles_by_name(const nn::Graph& graph, const Plan& plan,
                                              int blocks) {
  const auto roles = roles_of(graph, plan, blocks);
  std::map<std::string, NodeRole> by_name;
  for (size_t i = 0; i < roles.size(); ++i) by_name[graph.nodes()[i].name] = roles[i];
  return by_name;
}

TEST(Plan, GivesEachLayerItsRole) {
  auto roles = roles_by_name(test::small_gpt({.tied = false}),
                             {{"*.wte", rows()},
                              {"*.attn.c_attn", columns()},
                              {"*.attn.attention", heads()},
                              {"*.mlp.c_fc", columns()},
                              {"*.c_proj", rows()},
                              {"lm_head", columns()}},
                             2);
  const auto role = [&](const std::string& name) { return roles.at(name).role; };
  EXPECT_EQ(role("transformer.wte"), Role::rows);
  EXPECT_EQ(roles.at("transformer.h.0.attn.c_attn"),
            (NodeRole{Role::columns, 3, "transformer.h.0.attn.c_attn"}));
  EXPECT_EQ(roles.at("transformer.h.0.attn.attention"),
            (NodeRole{Role::heads, 1, "transformer.h.0.attn.attention"}));
  EXPECT_EQ(roles.at("transformer.h.0.attn.c_proj"), (NodeRole{.role = Role::rows}));
  EXPECT_EQ(roles.at("transformer.h.1.mlp.act"),
            (NodeRole{Role::whole, 1, "transformer.h.1.mlp.c_fc"}));
  EXPECT_EQ(role("transformer.h.1.mlp.c_proj"), Role::rows);
  EXPECT_EQ(roles.at("lm_head"), (NodeRole{Role::columns, 1, "lm_head"}));
  EXPECT_EQ(roles.at("transformer.ln_f"), NodeRole());
}

TEST(Plan, ATiedHeadHasTheEmbeddingsWords) {
  const auto graph = test::small_gpt();
  const auto roles = roles_of(graph, {{"transformer.wte", rows()}}, 2);
  EXPECT_EQ(roles[1], (NodeRole{.role = Role::rows}));
  EXPECT_EQ(roles.back(), (NodeRole{Role::columns, 1, "transformer.wte"}));
}

TEST(Plan, TheFirstPatternThatMatchesCounts) {
  const auto graph = test::two_ends();
  const auto roles = roles_by_name(graph, {{"e*y", columns()}, {"*ea*", rows()}}, 2);
  EXPECT_EQ(roles.at("early").role, Role::columns);
}

TEST(Plan, OfOneBlockCutsNothingButIsChecked) {
  const auto graph = test::small_gpt();
  for (const auto& role : roles_of(graph, default_plan(graph, 2), 1)) EXPECT_EQ(role, NodeRole());
  EXPECT_THROW(roles_of(graph, {{"nothing", rows()}}, 1), UsageError);
}

TEST(Plan, ByTheFormOfAGraph) {
  EXPECT_THAT(
      default_plan(test::small_gpt({.tied = false}), 2),
      ElementsAre(Pair("transformer.wte", Role::rows),
                  Pair("transformer.h.0.attn.c_attn", Role::columns),
                  Pair("transformer.h.0.attn.attention", Role::heads),
                  Pair("transformer.h.0.attn.c_proj", Role::rows),
                  Pair("transformer.h.0.mlp.c_fc", Role::columns),
                  Pair("transformer.h.0.mlp.c_proj", Role::rows),
                  Pair("transformer.h.1.attn.c_attn", Role::columns),
                  Pair("transformer.h.1.attn.attention", Role::heads),
                  Pair("transformer.h.1.attn.c_proj", Role::rows),
                  Pair("transformer.h.1.mlp.c_fc", Role::columns),
                  Pair("transformer.h.1.mlp.c_proj", Role::rows), Pair("lm_head", Role::columns)));
  EXPECT_THAT(default_plan(test::small_cnn(), 2),
              ElementsAre(Pair("dense", Role::columns), Pair("head", Role::rows)));
  EXPECT_THAT(default_plan(test::applied_twice(), 2), IsEmpty()) << "layers applied twice";
  EXPECT_THAT(default_plan(test::two_ends(), 2), IsEmpty()) << "values with several readers";
}

TEST(Plan, ByTheFormLeavesHeadsThatDoNotDivideWhole) {
  const auto graph = test::small_gpt();
  const auto plan = default_plan(graph, 4);
  for (const auto& [name, role] : plan)
    EXPECT_THAT(name, ::testing::Not(HasSubstr("attn"))) << name;
  EXPECT_EQ(plan.size(), 5) << "the table, and two layers of each mlp";
}

TEST(Plan, ByTheFormIsOneThatIsTaken) {
  for (const bool tied : {true, false})
    for (int blocks = 1; blocks <= 66; ++blocks) {
      const auto graph = test::small_gpt({.tied = tied, .dropout = 0.1});
      EXPECT_NO_THROW(roles_of(graph, default_plan(graph, blocks), blocks)) << blocks;
    }
}

TEST(Plan, CutsLieNotBetweenColumnsAndRows) {
  const auto graph = test::small_gpt();
  const auto roles = roles_of(graph, default_plan(graph, 2), 2);
  std::string refused;
  for (size_t place = 1; place < roles.size(); ++place)
    if (!why_no_cut(graph, roles, place).empty()) refused += " " + graph.nodes()[place].name;
  std::string expected;
  for (const char* layer : {"0", "1"})
    for (const char* part : {"attn.attention", "attn.c_proj", "mlp.act", "mlp.c_proj"})
      expected += fmt::format(" transformer.h.{}.{}", layer, part);
  EXPECT_EQ(refused, expected);
}

// ---- errors ----

struct Refusal {
  std::string name;
  nn::Graph graph;
  Plan plan;
  int blocks;
  std::string words;
};
void PrintTo(const Refusal& one, std::ostream* stream) { *stream << one.name; }

class PlanErrors : public ::testing::TestWithParam<Refusal> {};

TEST_P(PlanErrors, SayWhatToTry) {
  const auto& [name, graph, plan, blocks, words] = GetParam();
  EXPECT_THAT(test::message_of<UsageError>([&] { roles_of(graph, plan, blocks); }),
              HasSubstr(words));
}

/// "up", `between`, "down".
nn::Graph mlp_around(const nn::Layer& between) {
  const auto input = nn::input({6});
  return {input,
          nn::linear(3).named("down")(between.named("between")(nn::linear(9).named("up")(input)))};
}
const Plan kUpAndDown = {{"up", columns()}, {"down", rows()}};

nn::Graph two_readers_of_heads() {
  const auto input = nn::input({5, 4});
  const auto x = nn::linear(12).named("qkv")(input);
  const auto attended = nn::attention(2).named("attend")(x);
  return {{{"x", input}},
          {{"y", nn::linear(4).named("down")(attended)}, {"z", nn::linear(4).named("other")(x)}}};
}
nn::Graph stacked_output() {
  const auto input = nn::input({5, 4});
  const auto x = nn::linear(12).named("qkv")(input);
  return {{{"x", input}}, {{"y", nn::attention(2).named("attend")(x)}, {"z", x}}};
}

INSTANTIATE_TEST_SUITE_P(
    Plans, PlanErrors,
    ::testing::Values(
        Refusal{"unknown_pattern",
                test::small_gpt(),
                {{"*.attn.c_atn", columns()}},
                2,
                "plan: \"*.attn.c_atn\" matches no layer; did you mean "
                "\"*.attn.c_attn\"?"},
        Refusal{"unknown_name",
                test::small_gpt({.tied = false}),
                {{"lm_heads", columns()}},
                2,
                "plan: \"lm_heads\" matches no layer; did you mean \"lm_head\"?"},
        Refusal{"nothing_near",
                test::small_gpt(),
                {{"zzzzzz", rows()}},
                2,
                "matches no layer; summary() has their names"},
        Refusal{"an_input", test::small_gpt(), {{"tokens", rows()}}, 2, "matches no layer"},
        Refusal{"columns_of_a_norm",
                test::small_gpt(),
                {{"*.ln_1", columns()}},
                2,
                "plan: layer transformer.h.0.ln_1 (layer_norm) cannot be cut into columns; columns "
                "are of linear and tied_linear"},
        Refusal{"columns_of_a_table",
                test::small_gpt(),
                {{"*.wte", columns()}},
                2,
                "layer transformer.wte (embedding) cannot be cut into columns"},
        Refusal{"heads_of_a_linear",
                test::small_gpt(),
                {{"*.c_fc", heads()}},
                2,
                "layer transformer.h.0.mlp.c_fc (linear) cannot be cut into heads"},
        Refusal{"heads_that_do_not_divide",
                test::small_gpt(),
                {{"*.c_attn", columns()}, {"*.attention", heads()}, {"*.attn.c_proj", rows()}},
                4,
                "layer transformer.h.0.attn.attention: 6 heads on tensor = 4 (possible: 1, 2, 3, "
                "6)"},
        Refusal{"fewer_words_than_blocks",
                test::small_gpt(),
                {{"*.wte", rows()}},
                66,
                "layer transformer.wte: 65 elements on 66 blocks"},
        Refusal{"fewer_features_than_blocks", mlp_around(nn::relu()), kUpAndDown, 10,
                "layer up: 9 elements on 10 blocks"},
        Refusal{
            "softmax_of_blocks", mlp_around(nn::softmax()), kUpAndDown, 2,
            "plan: layer between (softmax) reads blocks of layer up, which it cannot: only "
            "relu, gelu, tanh, heads and rows do; put rows() on a linear layer between them, or "
            "leave up whole"},
        Refusal{
            "dropout_of_blocks", mlp_around(nn::dropout(0.5)), kUpAndDown, 2,
            "layer between (dropout) reads blocks of layer up, which it cannot: dropout between "
            "columns and rows is not cut"},
        Refusal{"whole_linear_of_blocks",
                mlp_around(nn::tanh()),
                {{"up", columns()}},
                2,
                "layer down (linear) reads blocks of layer up"},
        Refusal{"columns_of_blocks",
                mlp_around(nn::relu()),
                {{"up", columns()}, {"down", columns()}},
                2,
                "layer down (linear) reads blocks of layer up"},
        Refusal{"whole_attention_of_blocks",
                test::small_gpt(),
                {{"*.c_attn", columns()}},
                2,
                "layer transformer.h.0.attn.attention (attention) reads blocks of layer "
                "transformer.h.0.attn.c_attn, which it cannot: attention does when it is cut into "
                "heads()"},
        Refusal{"heads_of_a_whole",
                test::small_gpt(),
                {{"*.attention", heads()}},
                2,
                "layer transformer.h.0.attn.attention (attention) is cut into heads, layer "
                "transformer.h.0.attn.c_attn before it is whole; add "
                "{\"transformer.h.0.attn.c_attn\", columns()}"},
        Refusal{"rows_of_queries",
                two_readers_of_heads(),
                {{"qkv", columns()}, {"attend", heads()}, {"down", rows()}, {"other", rows()}},
                2,
                "layer other (linear) reads columns of layer qkv, of which attention has queries, "
                "keys and values in each block"},
        Refusal{"queries_as_output",
                stacked_output(),
                {{"qkv", columns()}, {"attend", heads()}},
                2,
                "output \"z\" is the columns of layer qkv"}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace tutti::parallel
