// Programs that are damaged, or were made to harm, in zips that are sound: each is refused with the
// place, before a tensor is made.
#include <gtest/gtest.h>

#include "tutti/pt2/program.h"

#include "tests/support/expect.h"
#include "tests/support/pt2_files.h"

namespace tutti::pt2 {
namespace {

const std::string kSoundProgram = "tests/tables/exported/mlp.pt2";

struct WrongProgram {
  std::string name;
  std::function<void(OrderedJson&)> change;
  std::vector<std::string> words = {};  ///< that the message has
};

Program read_zip_program(const ZipFile& zip) {
  const std::string bytes = zip.bytes();
  const Archive archive(MappedFile{std::as_bytes(std::span(bytes)), nullptr}, "hostile.pt2");
  return read_program(archive);
}

void expect_refused(const std::string& name, const ZipFile& zip,
                    const std::vector<std::string>& words) {
  const auto message = message_of<DataError>([&] { read_zip_program(zip); });
  EXPECT_THAT(message, HasSubstr("hostile.pt2")) << name;
  for (const std::string& word : words) EXPECT_THAT(message, HasSubstr(word)) << name;
  EXPECT_LT(message.size(), 2000u) << name;
}

void expect_each_refused(const std::string& record, const std::vector<WrongProgram>& wrongs) {
  for (const WrongProgram& wrong : wrongs) {
    ZipFile zip = read_zip(kSoundProgram);
    change_json(zip, record, wrong.change);
    expect_refused(wrong.name, zip, wrong.words);
  }
}

/// Of the first weight in the table.
OrderedJson& payload(OrderedJson& table) { return table.at("config").at("hidden.weight"); }
OrderedJson& meta(OrderedJson& table) { return payload(table).at("tensor_meta"); }

OrderedJson ints(const std::vector<int64_t>& values) {
  OrderedJson list = OrderedJson::array();
  for (int64_t value : values) {
    OrderedJson item = OrderedJson::object();
    item["as_int"] = value;
    list.push_back(item);
  }
  return list;
}

OrderedJson argument(const std::string& kind, const OrderedJson& value) {
  OrderedJson json = OrderedJson::object();
  json[kind] = value;
  return json;
}

TEST(HostilePrograms, TheFileTheyAreMadeOfIsSound) {
  ZipFile zip = read_zip(kSoundProgram);
  change_json(zip, kModel, [](OrderedJson&) {});
  change_json(zip, kWeights, [](OrderedJson&) {});
  const Program program = read_zip_program(zip);
  EXPECT_EQ(program.graph.nodes.size(), 3u);
  EXPECT_THAT(program.order,
              ElementsAre("hidden.weight", "hidden.bias", "head.weight", "head.bias"));
}

TEST(HostilePrograms, MembersThatNobodyKnowsAreLetBe) {
  // A later minor version of the schema has more of them.
  ZipFile zip = read_zip(kSoundProgram);
  change_json(zip, kModel, [](OrderedJson& json) {
    json.at("schema_version")["minor"] = 99;
    json["new"] = "x";
    node_of(json, 0)["new"] = OrderedJson::array({1, 2});
  });
  read_zip_program(zip);
}

TEST(HostilePrograms, Versions) {
  expect_each_refused(
      kModel,
      {{"another schema", [](auto& json) { json.at("schema_version")["major"] = 9; }, {"9", "8"}},
       {"an older schema", [](auto& json) { json.at("schema_version")["major"] = 7; }, {"7", "8"}},
       {"no schema", [](auto& json) { json.erase("schema_version"); }, {"schema_version"}},
       {"decomposed",
        [](auto& json) { json["verifiers"] = OrderedJson::array({"ATEN"}); },
        {"ATEN", "TRAINING", "run_decompositions"}},
       {"decomposed too",
        [](auto& json) { json["verifiers"] = OrderedJson::array({"TRAINING", "ATEN"}); },
        {"TRAINING"}},
       {"of no dialect",
        [](auto& json) { json["verifiers"] = OrderedJson::array(); },
        {"TRAINING"}},
       {"no graph", [](auto& json) { json.erase("graph_module"); }, {"graph_module"}},
       {"no signature",
        [](auto& json) { json.at("graph_module").erase("signature"); },
        {"signature"}},
       {"no nodes", [](auto& json) { graph_of(json).erase("nodes"); }, {"nodes"}},
       {"nodes that are a number", [](auto& json) { graph_of(json)["nodes"] = 1; }, {"array"}},
       {"a list", [](auto& json) { json = OrderedJson::array({1}); }}});
}

TEST(HostilePrograms, Values) {
  expect_each_refused(
      kModel,
      {{"used and never made",
        [](auto& json) { node_of(json, 1).at("inputs")[0]["arg"] = tensor_json("nowhere"); },
        {"nowhere"}},
       {"a cycle: used before it is made",
        [](auto& json) { node_of(json, 0).at("inputs")[0]["arg"] = tensor_json("linear_1"); },
        {"linear_1"}},
       {"used by the node that makes it",
        [](auto& json) { node_of(json, 1).at("inputs")[0]["arg"] = tensor_json("gelu"); },
        {"gelu"}},
       {"made twice",
        [](auto& json) {
          node_of(json, 1)["outputs"] = OrderedJson::array({tensor_json("linear")});
        },
        {"linear"}},
       {"made twice by one node",
        [](auto& json) {
          node_of(json, 1)["outputs"] =
              OrderedJson::array({tensor_json("gelu"), tensor_json("gelu")});
        },
        {"gelu"}},
       {"made, and an input",
        [](auto& json) { node_of(json, 0)["outputs"] = OrderedJson::array({tensor_json("x")}); },
        {"x"}},
       {"an input twice",
        [](auto& json) {
          graph_of(json).at("inputs")[1] = OrderedJson(graph_of(json).at("inputs")[0]);
        },
        {"p_hidden_weight"}},
       {"an output that nobody computes",
        [](auto& json) {
          graph_of(json)["outputs"] = OrderedJson::array({tensor_json("nowhere")});
        },
        {"nowhere"}},
       {"a tensor's name that is a number",
        [](auto& json) { node_of(json, 1).at("inputs")[0].at("arg").at("as_tensor")["name"] = 7; }},
       {"an argument that is two",
        [](auto& json) { node_of(json, 1).at("inputs")[0].at("arg")["as_int"] = 7; }},
       {"an argument that is none",
        [](auto& json) { node_of(json, 1).at("inputs")[0]["arg"] = OrderedJson::object(); }},
       {"an argument that is a text",
        [](auto& json) { node_of(json, 1).at("inputs")[0]["arg"] = "x"; }},
       {"a target that is a number", [](auto& json) { node_of(json, 1)["target"] = 7; }},
       {"a node that is null", [](auto& json) { graph_of(json).at("nodes")[1] = nullptr; }}});
}

TEST(HostilePrograms, Arguments) {
  const auto with = [](const OrderedJson& wrong) {
    return [wrong](OrderedJson& json) {
      insert_node(
          json, 0,
          node_json("torch.ops.aten.zeros.default",
                    {{"size", argument("as_ints", OrderedJson::array({1}))}, {"dtype", wrong}},
                    "made"));
    };
  };
  const auto list = [](const OrderedJson& element) { return OrderedJson::array({element}); };
  expect_each_refused(kModel,
                      {{"element type 99", with(argument("as_scalar_type", 99)), {"99"}},
                       {"element type 0", with(argument("as_scalar_type", 0))},
                       {"element type of 8 bits", with(argument("as_scalar_type", 29)), {"29"}},
                       {"element type -1", with(argument("as_scalar_type", -1)), {"-1"}},
                       {"memory format 99", with(argument("as_memory_format", 99)), {"99"}},
                       {"a number beyond 64 bits", with(argument("as_int", 1e300))},
                       {"a number that is a text", with(argument("as_int", "7"))},
                       {"half a whole number", with(argument("as_int", 0.5))},
                       {"infinity in other words", with(argument("as_float", "Infinityx"))},
                       {"numbers that are a number", with(argument("as_ints", 7))},
                       {"a number among tensors", with(argument("as_tensors", list(7)))},
                       {"a truth that is a number", with(argument("as_bool", 7))}});
}

TEST(HostilePrograms, Graphs) {
  const auto empty = [] {
    OrderedJson graph = OrderedJson::object();
    for (const char* list : {"inputs", "outputs", "nodes"}) graph[list] = OrderedJson::array();
    for (const char* map : {"tensor_values", "sym_int_values", "sym_bool_values"})
      graph[map] = OrderedJson::object();
    return graph;
  };
  const auto nested = [&](int depth) {
    OrderedJson graph = empty();
    for (int i = 0; i < depth; ++i) {
      OrderedJson inner = OrderedJson::object();
      inner["name"] = "g";
      inner["graph"] = graph;
      graph = empty();
      graph.at("nodes").push_back(
          node_json("torch.ops.higher_order.wrap_with_set_grad_enabled",
                    {{"", argument("as_bool", true)}, {"", argument("as_graph", inner)}}, ""));
    }
    return graph;
  };
  // Eight graphs within one another are some sixty levels of JSON.
  const auto within = [&](int depth) {
    return [&, depth](OrderedJson& json) {
      insert_node(json, 0, OrderedJson(nested(depth).at("nodes")[0]));
    };
  };
  expect_each_refused(kModel, {{"nested too deep", within(15)},
                               {"nested deeper than JSON may be", within(30)},
                               {"no graph where one is said to be", [&](auto& json) {
                                  insert_node(json, 0,
                                              node_json("torch.ops.higher_order.cond",
                                                        {{"", argument("as_graph", "g")}}, ""));
                                }}});
}

TEST(HostilePrograms, Signatures) {
  const auto spec = [](const std::string& kind, const OrderedJson& members) {
    OrderedJson json = OrderedJson::object();
    json[kind] = members;
    return json;
  };
  expect_each_refused(
      kModel,
      {{"fewer inputs than the graph has",
        [](auto& json) {
          OrderedJson fewer = OrderedJson::array({OrderedJson(inputs_of(json)[0])});
          inputs_of(json) = fewer;
        },
        {"input"}},
       {"inputs in another order than the graph's",
        [](auto& json) {
          OrderedJson first = inputs_of(json)[0];
          inputs_of(json)[0] = OrderedJson(inputs_of(json)[1]);
          inputs_of(json)[1] = first;
        },
        {"hidden"}},
       {"a parameter that no table has",
        [](auto& json) { inputs_of(json)[0].at("parameter")["parameter_name"] = "nowhere"; },
        {"nowhere"}},
       {"a parameter twice",
        [](auto& json) { inputs_of(json)[1].at("parameter")["parameter_name"] = "hidden.weight"; },
        {"hidden.weight"}},
       {"an input of a kind that nobody knows",
        [&](auto& json) { inputs_of(json)[0] = spec("secret", OrderedJson::object()); },
        {"secret"}},
       {"an object of Python as input",
        [&](auto& json) {
          OrderedJson members = OrderedJson::object();
          members["arg"] = OrderedJson::object();
          members["custom_obj_name"] = "queue";
          inputs_of(json)[0] = spec("custom_obj", members);
        },
        {"custom_obj"}},
       {"no outputs in the signature",
        [](auto& json) { outputs_of(json) = OrderedJson::array(); },
        {"output"}},
       {"an output that the graph has not",
        [](auto& json) { outputs_of(json)[0].at("user_output")["arg"] = tensor_json("gelu"); },
        {"gelu"}},
       {"a buffer that is changed behind the graph: decomposed",
        [&](auto& json) {
          OrderedJson members = OrderedJson::object();
          members["arg"] = OrderedJson(outputs_of(json)[0].at("user_output").at("arg"));
          members["buffer_name"] = "hidden.weight";
          outputs_of(json)[0] = spec("buffer_mutation", members);
        },
        {"buffer_mutation"}}});
}

TEST(HostilePrograms, TreesOfArguments) {
  const auto in_spec = [](const std::string& text) {
    return [text](OrderedJson& json) {
      json.at("graph_module").at("module_call_graph")[0].at("signature")["in_spec"] = text;
    };
  };
  expect_each_refused(
      kModel,
      {{"no JSON", in_spec("[1, {"), {"in_spec"}},
       {"another version", in_spec("[7, {}]"), {"in_spec", "7"}},
       {"nested 300,000 deep", in_spec("[1, " + nested_arrays(300'000) + "]"), {"in_spec"}},
       {"nested 300,000 deep, in text", in_spec(nested_arrays(300'000)), {"in_spec"}},
       {"an empty text", in_spec(""), {"in_spec"}},
       {"no arguments, where the graph has one",
        in_spec(R"([1, {"type": "builtins.tuple", "context": "null", "children_spec": []}])")}});
}

TEST(HostilePrograms, Ranges) {
  const auto range = [](const OrderedJson& low, const OrderedJson& high) {
    return [low, high](OrderedJson& json) {
      OrderedJson& ranges = json.at("range_constraints");
      const std::string symbol = ranges.items().at(0).first;
      ranges.at(symbol)["min_val"] = low;
      ranges.at(symbol)["max_val"] = high;
    };
  };
  expect_each_refused(
      kModel,
      {{"no number fits", range(9, 4), {"9", "4"}},
       {"limits that are texts", range("many", "more")},
       {"no limits", [](auto& json) { json["range_constraints"] = OrderedJson::array({1}); }}});
}

TEST(HostilePrograms, Weights) {
  const int64_t far = int64_t{1} << 62;
  expect_each_refused(
      kWeights,
      {{"2^62 rows",
        [&](auto& table) {
          meta(table)["sizes"] = ints({far, 4});
          meta(table)["strides"] = ints({0, 0});
        },
        {"hidden.weight"}},
       {"sizes whose product overflows",
        [&](auto& table) { meta(table)["sizes"] = ints({int64_t{1} << 32, int64_t{1} << 32}); },
        {"hidden.weight"}},
       {"a negative size", [](auto& table) { meta(table)["sizes"] = ints({-1, 6}); }, {"-1"}},
       {"a stride of 2^62", [&](auto& table) { meta(table)["strides"] = ints({far, 1}); }},
       {"a negative stride", [](auto& table) { meta(table)["strides"] = ints({-6, 1}); }, {"-6"}},
       {"more strides than sizes", [](auto& table) { meta(table)["strides"] = ints({6, 1, 1}); }},
       {"65 dimensions",
        [](auto& table) {
          meta(table)["sizes"] = ints(std::vector<int64_t>(65, 1));
          meta(table)["strides"] = ints(std::vector<int64_t>(65, 1));
        },
        {"65"}},
       {"an offset before the record",
        [](auto& table) { meta(table)["storage_offset"] = argument("as_int", -8); },
        {"-8"}},
       {"an offset behind the record",
        [](auto& table) { meta(table)["storage_offset"] = argument("as_int", 100'000); },
        {"hidden.weight"}},
       {"an offset of 2^63 - 1",
        [](auto& table) {
          meta(table)["storage_offset"] = argument("as_int", std::numeric_limits<int64_t>::max());
        }},
       {"larger than its record",
        [](auto& table) { meta(table)["sizes"] = ints({11, 6}); },
        {"hidden.weight"}},
       {"wider than its record", [](auto& table) { meta(table)["dtype"] = 8; }, {"hidden.weight"}},
       {"of element type 99", [](auto& table) { meta(table)["dtype"] = 99; }, {"99"}},
       {"of element type 0", [](auto& table) { meta(table)["dtype"] = 0; }},
       {"sparse", [](auto& table) { meta(table)["layout"] = 1; }, {"layout"}},
       {"a size that is a symbol",
        [](auto& table) {
          OrderedJson symbol = OrderedJson::object();
          symbol["expr_str"] = "Symbol('s0')";
          meta(table).at("sizes")[0] = argument("as_expr", symbol);
        }},
       {"a pickle",
        [](auto& table) { payload(table)["use_pickle"] = true; },
        {"hidden.weight", "pickle"}},
       {"a pickle without a word of it",
        [](auto& table) {
          payload(table)["use_pickle"] = true;
          payload(table)["tensor_meta"] = nullptr;
        },
        {"hidden.weight", "pickle"}},
       {"no word of its shape",
        [](auto& table) { payload(table)["tensor_meta"] = nullptr; },
        {"hidden.weight"}},
       {"a path out of the archive",
        [](auto& table) { payload(table)["path_name"] = "../../../../etc/passwd"; },
        {"etc/passwd"}},
       {"another record than there is",
        [](auto& table) { payload(table)["path_name"] = "weight_99"; },
        {"weight_99"}},
       {"a path that is a number", [](auto& table) { payload(table)["path_name"] = 1; }},
       {"a weight that is not there",
        [](auto& table) { table.at("config").erase("hidden.weight"); },
        {"hidden.weight"}},
       {"a table without entries", [](auto& table) { table.erase("config"); }, {"config"}},
       {"a table that is a list", [](auto& table) { table = OrderedJson::array(); }}});
}

TEST(HostilePrograms, WhatIsNoJson) {
  const std::vector<std::pair<std::string, std::string>> texts = {
      {"nothing", ""},
      {"cut off", R"({"graph_module": {)"},
      {"a pickle", std::string("\x80\x02}q\x01.", 6)},
      {"nested 300,000 deep", R"({"z": )" + nested_arrays(300'000) + "}"},
      {"open 300,000 times", std::string(300'000, '[')},
      {"objects, open 300,000 times",
       [] {
         std::string text;
         for (int i = 0; i < 300'000; ++i) text += R"({"a":)";
         return text;
       }()},
      {"no text", std::string("{\"\xff\xfe\": 1}")},
      {"zeros", std::string(1000, '\0')}};
  for (const std::string& record : {kModel, kWeights})
    for (const auto& [name, text] : texts) {
      ZipFile zip = read_zip(kSoundProgram);
      zip.at(record).bytes = text;
      expect_refused(record + ", " + name, zip, {record});
    }
}

TEST(HostilePrograms, DeepWhereNobodyLooks) {
  ZipFile zip = read_zip(kSoundProgram);
  std::string& text = zip.at(kModel).bytes;
  text = text.substr(0, text.rfind('}')) + R"(, "z": )" + nested_arrays(300'000) + "}";
  expect_refused("a member that nobody knows, 300,000 deep", zip, {kModel});
}

TEST(HostilePrograms, AKeyTwiceSaysOneThingAtMost) {
  // Of two members of one name readers choose differently: what was checked elsewhere is not what
  // runs.
  ZipFile zip = read_zip(kSoundProgram);
  std::string& text = zip.at(kModel).bytes;
  text = text.substr(0, text.rfind('}')) + R"(, "schema_version": {"major": 9, "minor": 0}})";
  expect_refused("schema_version twice", zip, {"schema_version"});
}

}  // namespace
}  // namespace tutti::pt2
