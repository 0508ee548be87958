// Graphs as text, and back.
#include <torch/torch.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "tutti/base/error.h"
#include "tutti/nn/graph_json.h"
#include "tutti/nn/graph_module.h"

#include "tests/fuzz/graph_text.h"
#include "tests/support/expect.h"
#include "tests/support/operator_graphs.h"

namespace tutti::graph_text {
namespace {

using test::operator_graphs;

class GraphJson : public ::testing::TestWithParam<size_t> {};

TEST_P(GraphJson, IsTheSameGraphWhenItIsRead) {
  const nn::Graph& graph = operator_graphs()[GetParam()].graph;
  const std::string text = nn::graph_to_json(graph);
  const nn::Graph read = nn::graph_from_json(text, "here");
  EXPECT_EQ(nn::graph_to_json(read), text);
  EXPECT_EQ(read.summary(), graph.summary());
  ASSERT_EQ(read.nodes().size(), graph.nodes().size());
  for (size_t i = 0; i < read.nodes().size(); ++i)
    EXPECT_EQ(nn::words_of(read.nodes()[i]), nn::words_of(graph.nodes()[i]));
}

INSTANTIATE_TEST_SUITE_P(Each, GraphJson, ::testing::Range(size_t{0}, operator_graphs().size()),
                         [](const auto& info) {
                           return std::string(operator_graphs()[info.param].name);
                         });

TEST(GraphJsonText, KeepsWhatIsFrozenSynchronizedAndShared) {
  const auto input = nn::input({3, 5, 5});
  const auto shared = nn::conv2d(3, 3, {.padding = 1}).named("group.conv");
  const auto norm = nn::batch_norm2d().named("group.norm");
  const nn::Graph graph = nn::with_frozen(
      nn::with_synchronized_batch_norm({input, shared(nn::relu()(norm(shared(input))))}),
      {"group.conv"});
  const nn::Graph read = nn::graph_from_json(nn::graph_to_json(graph), "here");
  EXPECT_EQ(read.num_parameters(), graph.num_parameters());
  EXPECT_EQ(read.num_frozen(), 3 * 3 * 9 + 3);
  EXPECT_EQ(nn::graph_to_json(read), nn::graph_to_json(graph));
  const auto x = at::randn({2, 3, 5, 5});
  torch::manual_seed(1);
  const auto one = nn::make_module(graph);
  torch::manual_seed(1);
  const auto other = nn::make_module(read);
  one->eval();
  other->eval();
  EXPECT_TRUE(at::equal(one->forward(x), other->forward(x)));
}

TEST(GraphJsonText, IsANodeALine) {
  const auto input = nn::input({4});
  EXPECT_EQ(nn::graph_to_json({input, nn::relu()(nn::linear(2)(input))}),
            R"({"format": "tutti graph 1",
"inputs": [{"name":"input","node":0}],
"outputs": [{"name":"output","node":2}],
"nodes": [
{"op":"input","name":"input","of":[],"with":{"shape":[4],"dtype":"float32"},"shape":[4]},
{"op":"linear","name":"linear_1","of":[0],"with":{"in_features":4,"units":2,"bias":true,)"
            R"("initial_deviation":0.0},"shape":[2]},
{"op":"relu","name":"relu_1","of":[1],"with":{},"shape":[2]}
]}
)");
}

/// A text that is read, and what becomes of it with `from` replaced by `to`.
struct Damage {
  const char* name;
  const char* from;
  const char* to;
  std::vector<const char*> words;  ///< of the error
};

const std::vector<Damage>& damages() {
  static const std::vector<Damage> all{
      {"other_version",
       "tutti graph 1",
       "tutti graph 2",
       {"\"tutti graph 2\"", "\"tutti graph 1\""}},
      {"other_format", "tutti graph 1", "cake", {"is no graph"}},
      {"no_json", "\"nodes\": [", "\"nodes\": ", {"line "}},
      {"unknown_key", "\"inputs\"", "\"input\"", {"unknown field \"input\"", "\"inputs\""}},
      {"key_twice", "\"units\":2", "\"units\":2,\"units\":2", {"units"}},
      {"unknown_operator",
       "\"op\":\"linear\"",
       "\"op\":\"linnear\"",
       {"node 1", "fc", "unknown operator \"linnear\"", "\"linear\""}},
      {"missing_field", "\"units\":2,", "", {"node 1 (\"fc\")", "units"}},
      {"unknown_field",
       "\"units\":2",
       "\"units\":2,\"colour\":1",
       {"node 1", "unknown field \"colour\""}},
      {"fraction", "\"units\":2", "\"units\":2.5", {"\"units\": got 2.5", "whole number"}},
      {"negative", "\"units\":2", "\"units\":-2", {"\"units\": got -2"}},
      {"huge",
       "\"units\":2",
       "\"units\":18446744073709551615",
       {"\"units\": got 18446744073709551615"}},
      {"zero_units", "\"units\":2", "\"units\":0", {"fc", "units is 0"}},
      {"text_for_number", "\"units\":2", "\"units\":\"2\"", {"got \"2\""}},
      {"number_for_truth", "\"bias\":true", "\"bias\":1", {"\"bias\": got 1", "true or false"}},
      {"other_features",
       "\"in_features\":4",
       "\"in_features\":5",
       {"node 1", "\"in_features\":5", "\"in_features\":4"}},
      {"other_shape",
       "},\"shape\":[2]},\n{\"op\":\"relu\"",
       "},\"shape\":[3]},\n{\"op\":\"relu\"",
       {"node 1", "shape [3]", "[2]"}},
      {"later_node", "\"of\":[0]", "\"of\":[2]", {"node 1", "got node 2"}},
      {"own_node", "\"of\":[0]", "\"of\":[1]", {"node 1", "got node 1"}},
      {"negative_node", "\"of\":[0]", "\"of\":[-1]", {"node 1", "-1"}},
      {"no_input", "\"of\":[0]", "\"of\":[]", {"node 1", "got 0 inputs"}},
      {"two_inputs", "\"of\":[0]", "\"of\":[0,0]", {"node 1", "got 2 inputs"}},
      {"input_of_something", "\"of\":[],", "\"of\":[0],", {"node 0"}},
      {"empty_name", "\"name\":\"fc\"", "\"name\":\"\"", {"node 1", "no name of a layer"}},
      {"dots", "\"name\":\"fc\"", "\"name\":\"a..b\"", {"node 1", "no name of a layer"}},
      {"name_twice", "\"name\":\"fc\"", "\"name\":\"relu_1\"", {"node 2", "relu_1"}},
      {"dtype", "float32", "float31", {"unknown dtype \"float31\"", "\"float32\""}},
      {"shape_of_input", "\"shape\":[4],\"dtype\"", "\"shape\":[4,-1],\"dtype\"", {"node 0", "-1"}},
      {"huge_input",
       "\"shape\":[4],\"dtype\"",
       "\"shape\":[2147483647,2147483647,4],\"dtype\"",
       {"node 0"}},
      {"port_of_a_layer",
       "{\"name\":\"input\",\"node\":0}",
       "{\"name\":\"input\",\"node\":1}",
       {"inputs 0", "fc"}},
      {"port_of_another_name",
       "{\"name\":\"input\",\"node\":0}",
       "{\"name\":\"in\",\"node\":0}",
       {"inputs 0", "\"in\""}},
      {"port_beyond", "\"node\":2", "\"node\":3", {"outputs 0", "got node 3"}},
      {"no_outputs", "[{\"name\":\"output\",\"node\":2}]", "[]", {"no outputs"}},
      {"unused_node", "\"node\":2", "\"node\":1", {"node 2 (\"relu_1\")", "no output"}},
      {"frozen_what",
       "\"shape\":[2]},\n{\"op\":\"relu\"",
       "\"shape\":[2],\"frozen\":[\"wait\"]},\n{\"op\":\"relu\"",
       {"node 1", "\"wait\"", "weight"}},
      {"deep", "\"with\":{}", "\"with\":{\"a\":[[[[[[[[[[[[1]]]]]]]]]]]]}", {"deep"}},
  };
  return all;
}

class DamagedGraph : public ::testing::TestWithParam<size_t> {};

TEST_P(DamagedGraph, IsRefusedWithItsPlace) {
  const Damage& damage = damages()[GetParam()];
  const auto input = nn::input({4});
  std::string text = nn::graph_to_json({input, nn::relu()(nn::linear(2).named("fc")(input))});
  const size_t at = text.find(damage.from);
  ASSERT_NE(at, std::string::npos);
  text.replace(at, std::string(damage.from).size(), damage.to);
  const std::string message =
      message_of<DataError>([&] { nn::graph_from_json(text, "model.json"); });
  EXPECT_THAT(message, StartsWith("model.json: "));
  for (const char* word : damage.words) EXPECT_THAT(message, HasSubstr(word));
}

INSTANTIATE_TEST_SUITE_P(Each, DamagedGraph, ::testing::Range(size_t{0}, damages().size()),
                         [](const auto& info) { return std::string(damages()[info.param].name); });

TEST(DamagedGraphs, EveryPrefixIsRefused) {
  const auto input = nn::input({4});
  const std::string text = nn::graph_to_json({input, nn::relu()(nn::linear(2)(input))});
  for (size_t bytes = 0; bytes + 2 < text.size(); ++bytes)
    EXPECT_THROW(nn::graph_from_json(text.substr(0, bytes), "x"), DataError) << bytes;
}

TEST(DamagedGraphs, AnyByteThatChangesIsRefusedOrMeansAGraph) {
  const auto input = nn::input({4});
  const std::string text = nn::graph_to_json({input, nn::relu()(nn::linear(2)(input))});
  int read = 0, refused = 0;
  for (size_t at = 0; at < text.size(); ++at)
    for (const char byte : {'0', '9', '-', '"', '[', '}', ',', 'x', '\xff'}) {
      std::string damaged = text;
      damaged[at] = byte;
      try {
        const nn::Graph graph = nn::graph_from_json(damaged, "x");
        EXPECT_EQ(nn::graph_to_json(nn::graph_from_json(nn::graph_to_json(graph), "x")),
                  nn::graph_to_json(graph));
        ++read;
      } catch (const DataError&) {
        ++refused;
      }
    }
  EXPECT_GT(read, 50) << "names may be any";
  EXPECT_GT(refused, 2000);
}

std::vector<std::string> texts_of_every_operator() {
  std::vector<std::string> texts;
  for (const auto& known : operator_graphs()) texts.push_back(nn::graph_to_json(known.graph));
  return texts;
}

/// One to four changes: a byte, a cut, a line of another graph, a number or a word in place of one.
std::string mutated(std::string text, const std::vector<std::string>& others,
                    std::mt19937& random) {
  const auto pick = [&](size_t below) { return below == 0 ? 0 : random() % below; };
  const auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
  const char* const numbers[] = {
      "0",   "1",   "-1",   "3",  "65536", "2147483647", "2147483648", "9223372036854775807",
      "1e9", "1.5", "null", "[]", "\"\"",  "true"};
  for (size_t change = 1 + pick(4); change > 0 && text.size() > 1; --change) {
    const size_t at = pick(text.size());
    switch (pick(5)) {
      case 0: text[at] = static_cast<char>(random()); break;
      case 1: text.erase(at, 1 + pick(20)); break;
      case 2: {
        const std::string& other = others[pick(others.size())];
        const size_t begin = other.rfind('\n', pick(other.size()));
        if (begin == std::string::npos) break;
        const size_t line = text.find('\n', at);
        text.insert(line == std::string::npos ? text.size() : line,
                    other.substr(begin, other.find('\n', begin + 1) - begin));
        break;
      }
      default: {
        const auto first =
            std::find_if(text.begin() + static_cast<std::ptrdiff_t>(at), text.end(), is_digit);
        const auto last = std::find_if_not(first, text.end(), is_digit);
        text.replace(first, last, numbers[pick(std::size(numbers))]);
      }
    }
  }
  return text;
}

TEST(GraphTextFuzz, MutationsOfEveryOperatorAreRefusedOrMeanAGraph) {
  std::mt19937 random(20'261'130);
  const auto texts = texts_of_every_operator();
  int read = 0, refused = 0;
  for (int round = 0; round < 20'000; ++round)
    (test::graph_text(mutated(texts[random() % texts.size()], texts, random)) ? read : refused)++;
  EXPECT_GT(read, 200) << "names may be any";
  EXPECT_GT(refused, 5'000);
}

TEST(DamagedGraphs, LayersOfOneNameAreOneLayer) {
  const auto input = nn::input({4});
  const auto shared = nn::linear(4).named("fc");
  std::string text = nn::graph_to_json({input, shared(shared(input))});
  const size_t second = text.rfind("\"bias\":true");
  text.replace(second, 11, "\"bias\":false");
  EXPECT_THAT(message_of<DataError>([&] { nn::graph_from_json(text, "x"); }),
              AllOf(HasSubstr("node 2"), HasSubstr("as the layer of this name before")));
}

TEST(DamagedGraphs, AReshapeOfTwoSizesDiffersInOneSide) {
  const std::string text = nn::graph_to_json(test::graphs::rows_of_ten());
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string damaged = text;
    for (size_t at = 0; (at = damaged.find(from, at)) != std::string::npos; at += to.size())
      damaged.replace(at, from.size(), to);
    return message_of<DataError>([&] { nn::graph_from_json(damaged, "x"); });
  };
  EXPECT_THAT(with("[3,10]", "[5,6]"), HasSubstr("as the layer of this name before"));
  EXPECT_THAT(with("[3,10]", "[3,5,2]"), HasSubstr("as the layer of this name before"));
}

TEST(DamagedGraphs, ManyParametersAreCounted) {
  // 2^31 - 1 units twice: 2^62 elements, and no byte of them is asked for.
  const std::string text = R"({"format": "tutti graph 1",
"inputs": [{"name":"x","node":0}], "outputs": [{"name":"y","node":2}],
"nodes": [
{"op":"input","name":"x","of":[],"with":{"shape":[4],"dtype":"float32"},"shape":[4]},
{"op":"linear","name":"a","of":[0],"shape":[2147483647],"with":{"in_features":4,
  "units":2147483647,"bias":true,"initial_deviation":0.0}},
{"op":"linear","name":"b","of":[1],"shape":[2147483647],"with":{"in_features":2147483647,
  "units":2147483647,"bias":true,"initial_deviation":0.0}}
]})";
  EXPECT_THAT(message_of<DataError>([&] { nn::graph_from_json(text, "x"); }),
              AllOf(HasSubstr("node 2 (\"b\")"), HasSubstr("elements of parameters")));
}

}  // namespace
}  // namespace tutti::graph_text
