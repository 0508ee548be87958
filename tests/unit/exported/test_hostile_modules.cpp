// Graphs that would do what no network does, and inputs that a graph was not exported for: refused
// when the file is read, or before the first operator runs.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tutti/base/error.h"
#include "tutti/exported/from_export.h"
#include "tutti/exported/module.h"

#include "tests/support/expect.h"
#include "tests/support/pt2_files.h"
#include "tests/support/temp_folder.h"

namespace tutti {
namespace {

const std::string kTables = "tests/tables/exported/";

OrderedJson argument(const std::string& kind, const OrderedJson& value) {
  OrderedJson json = OrderedJson::object();
  json[kind] = value;
  return json;
}

class HostileModules : public ::testing::Test {
 protected:
  /// mlp.pt2 with another program, as a file.
  std::filesystem::path with(const std::function<void(OrderedJson&)>& change) {
    ZipFile zip = read_zip(kTables + "mlp.pt2");
    change_json(zip, kModel, change);
    return put(zip);
  }
  std::filesystem::path with_node(const OrderedJson& node) {
    return with([&](OrderedJson& json) { insert_node(json, 0, node); });
  }
  std::filesystem::path put(const ZipFile& zip) {
    put_bytes(folder_ / "hostile.pt2", zip.bytes());
    return folder_ / "hostile.pt2";
  }

  TempFolder folder_;
};

TEST_F(HostileModules, TheFileTheyAreMadeOfTrains) {
  const auto module = from_export(with([](OrderedJson&) {}))();
  module->forward(torch::randn({6, 6})).sum().backward();
  for (const auto& parameter : module->parameters()) EXPECT_TRUE(parameter.grad().defined());
}

TEST_F(HostileModules, OperatorsThatAreNoPartOfANetwork) {
  struct Refused {
    std::string target;
    std::vector<std::pair<std::string, OrderedJson>> inputs;
    std::string word;
  };
  const OrderedJson file = argument("as_string", (folder_ / "written").string());
  const OrderedJson one = argument("as_ints", OrderedJson::array({1}));
  const OrderedJson tensor = tensor_json("x");
  const std::vector<Refused> all = {
      {"torch.ops.aten.from_file.default",
       {{"filename", file},
        {"shared", argument("as_bool", true)},
        {"size", argument("as_int", 4096)}},
       "from_file"},
      {"torch.ops.higher_order.while_loop", {{"", tensor}}, "while_loop"},
      {"torch.ops.higher_order.scan", {{"", tensor}}, "scan"},
      {"torch.ops.higher_order.flex_attention", {{"", tensor}}, "flex_attention"},
      {"torch.ops.higher_order.triton_kernel_wrapper_mutation", {{"", tensor}}, "triton"},
      {"torch.ops.aten.no_such_operator.default", {{"self", tensor}}, "no_such_operator"},
      {"torch.ops.aten.relu.no_such_overload", {{"self", tensor}}, "no_such_overload"},
      {"torch.ops.mine.secret.default", {{"self", tensor}}, "mine"},
      {"torch.ops.prims.device_put.default", {{"self", tensor}}, "prims"},
      {"torch.ops.profiler._record_function_enter.default", {{"name", file}}, "profiler"},
      {"torch.ops.aten.set_.source_Tensor", {{"self", tensor}, {"source", tensor}}, "set_"},
      {"torch.ops.aten._resize_output_.default",
       {{"self", tensor}, {"size", one}, {"device", argument("as_string", "cpu")}},
       "_resize_output_"},
      // These read beyond a tensor where an argument says so, in LibTorch 2.13.
      {"torch.ops.aten.segment_reduce.default", {{"data", tensor}}, "segment_reduce"},
      {"torch.ops.aten.fractional_max_pool2d.default", {{"self", tensor}}, "fractional_max_pool2d"},
      {"torch.ops.aten.ctc_loss.Tensor", {{"log_probs", tensor}}, "ctc_loss"},
      // LibTorch takes it for an index into a table.
      {"torch.ops.aten.to.dtype", {{"self", tensor}, {"dtype", argument("as_int", 200)}}, "dtype"},
      {"builtins.eval", {{"", file}}, "eval"},
      {"os.system", {{"", file}}, "os.system"},
      {"_operator.methodcaller", {{"", file}}, "methodcaller"},
      {"", {{"", tensor}}, "not"}};
  for (const Refused& refused : all) {
    const auto path = with_node(node_json(refused.target, refused.inputs, "made"));
    const std::string message = refusal_of<Error>([&] { from_export(path)(); });
    EXPECT_THAT(message, HasSubstr("hostile.pt2")) << refused.target;
    EXPECT_THAT(message, HasSubstr(refused.word)) << refused.target;
  }
  EXPECT_FALSE(std::filesystem::exists(folder_ / "written"));
}

TEST_F(HostileModules, AllThatIsNotServedIsSaidAtOnceWithItsLine) {
  OrderedJson first = node_json("torch.ops.higher_order.while_loop", {{"", tensor_json("x")}}, "a");
  first.at("metadata")["stack_trace"] =
      "  File \"mynets.py\", line 41, in forward\n    return while_loop(x)\n";
  const OrderedJson second = node_json("torch.ops.mine.secret.default", {}, "b");
  const auto path = with([&](OrderedJson& json) {
    insert_node(json, 0, first);
    insert_node(json, 2, second);
  });
  const auto message = message_of<UsageError>([&] { from_export(path); });
  EXPECT_THAT(message, AllOf(HasSubstr("while_loop"), HasSubstr("mynets.py"), HasSubstr("41"),
                             HasSubstr("mine")));
}

TEST_F(HostileModules, ArgumentsThatAreNotTheOperators) {
  const auto change = [&](const std::function<void(OrderedJson&)>& of_node) {
    return with([&](OrderedJson& json) { of_node(node_of(json, 1)); });  // gelu
  };
  const std::vector<std::pair<std::string, std::function<void(OrderedJson&)>>> wrongs = {
      {"a name that the schema has not",
       [](OrderedJson& node) { node.at("inputs")[0]["name"] = "nobody"; }},
      {"a text for a tensor",
       [](OrderedJson& node) { node.at("inputs")[0]["arg"] = argument("as_string", "x"); }},
      {"numbers for a tensor",
       [](OrderedJson& node) {
         node.at("inputs")[0]["arg"] = argument("as_ints", OrderedJson::array({1, 2}));
       }},
      {"a graph for a tensor",
       [](OrderedJson& node) {
         OrderedJson graph = OrderedJson::object(), inner = OrderedJson::object();
         for (const char* list : {"inputs", "outputs", "nodes"}) inner[list] = OrderedJson::array();
         for (const char* map : {"tensor_values", "sym_int_values", "sym_bool_values"})
           inner[map] = OrderedJson::object();
         graph["name"] = "g";
         graph["graph"] = inner;
         node.at("inputs")[0]["arg"] = argument("as_graph", graph);
       }},
      {"an object of Python",
       [](OrderedJson& node) {
         node.at("inputs")[0]["arg"] = argument("as_custom_obj", OrderedJson::object());
       }},
      {"no tensor at all", [](OrderedJson& node) { node["inputs"] = OrderedJson::array(); }},
      {"an argument twice",
       [](OrderedJson& node) { node.at("inputs").push_back(OrderedJson(node.at("inputs")[0])); }},
      {"more results than the operator has",
       [](OrderedJson& node) { node.at("outputs").push_back(tensor_json("more")); }},
      {"a list for a tensor that comes out", [](OrderedJson& node) {
         OrderedJson list = OrderedJson::array(), one = OrderedJson::object();
         one["name"] = "gelu";
         list.push_back(one);
         node["outputs"] = OrderedJson::array({argument("as_tensors", list)});
       }}};
  for (const auto& [name, wrong] : wrongs) {
    const auto path = change(wrong);
    EXPECT_THAT(refusal_of<Error>([&] { from_export(path); }),
                AllOf(HasSubstr("hostile.pt2"), HasSubstr("gelu")))
        << name;
  }
}

TEST_F(HostileModules, GreedyOrWrongGraphsEndInAnError) {
  // No file says how much memory a network may have: what LibTorch refuses is an error as any.
  const std::vector<std::pair<std::string, OrderedJson>> greedy = {
      {"memory that no machine has",
       node_json("torch.ops.aten.zeros.default",
                 {{"size", argument("as_ints", OrderedJson::array({int64_t{1} << 55}))}}, "made")},
      {"a negative size",
       node_json("torch.ops.aten.zeros.default",
                 {{"size", argument("as_ints", OrderedJson::array({-3}))}}, "made")},
      {"beyond a tensor's memory",
       node_json("torch.ops.aten.as_strided.default",
                 {{"self", tensor_json("p_hidden_weight")},
                  {"size", argument("as_ints", OrderedJson::array({100'000}))},
                  {"stride", argument("as_ints", OrderedJson::array({1}))}},
                 "made")}};
  for (const auto& [name, node] : greedy) {
    const auto path = with_node(node);
    EXPECT_ANY_THROW(from_export(path)()->forward(torch::randn({6, 6}))) << name;
  }
}

TEST_F(HostileModules, AFlippedBitOfAWeight) {
  const ZipFile zip = read_zip(kTables + "mlp.pt2");
  std::string bytes = zip.bytes();
  const std::string name = zip.root() + "data/weights/weight_0";
  bytes[bytes.find(name) + name.size() + 5] ^= 1;
  put_bytes(folder_ / "hostile.pt2", bytes);
  EXPECT_THAT(message_of<DataError>([&] { from_export(folder_ / "hostile.pt2")(); }),
              AllOf(HasSubstr("weight_0"), HasSubstr("CRC-32")));
}

TEST_F(HostileModules, AWeightOfWholeNumbersCannotBeTrained) {
  ZipFile zip = read_zip(kTables + "mlp.pt2");
  change_json(zip, kWeights, [](OrderedJson& table) {
    table.at("config").at("hidden.weight").at("tensor_meta")["dtype"] = 4;  // int32, as wide
  });
  const auto path = put(zip);
  EXPECT_THAT(refusal_of<Error>([&] { from_export(path)(); }),
              AllOf(HasSubstr("hostile.pt2"), HasSubstr("hidden.weight")));
}

TEST_F(HostileModules, NamesThatNoModuleCanHave) {
  for (const std::string name : {"hidden.weight.bias", "hidden", "a..b", ".a", "a.", ""}) {
    ZipFile zip = read_zip(kTables + "mlp.pt2");
    change_json(zip, kModel, [&](OrderedJson& json) {
      for (OrderedJson& spec : inputs_of(json))
        if (spec.contains("parameter") &&
            spec.at("parameter").at("parameter_name").text() == "hidden.bias")
          spec.at("parameter")["parameter_name"] = name;
    });
    change_json(zip, kWeights, [&](OrderedJson& table) {
      OrderedJson moved = table.at("config").at("hidden.bias");
      table.at("config").erase("hidden.bias");
      table.at("config")[name] = moved;
    });
    const auto path = put(zip);
    EXPECT_THAT(refusal_of<Error>([&] { from_export(path)(); }), HasSubstr("hostile.pt2")) << name;
  }
}

TEST_F(HostileModules, BatchesThatItsRangeForbids) {
  const auto path = with([](OrderedJson& json) {
    OrderedJson& range = json.at("range_constraints");
    const std::string symbol = range.items().at(0).first;
    range.at(symbol)["min_val"] = 2;
    range.at(symbol)["max_val"] = 4;
  });
  const auto module = from_export(path)();
  module->forward(torch::randn({2, 6}));
  module->forward(torch::randn({4, 6}));
  for (int64_t batch : {0, 1, 5, 1000}) {
    const auto message = message_of<UsageError>([&] { module->forward(torch::randn({batch, 6})); });
    EXPECT_THAT(message, AllOf(HasSubstr("x"), HasSubstr(std::to_string(batch)), HasSubstr("2"),
                               HasSubstr("4")));
  }
}

TEST_F(HostileModules, InputsOfOtherShapesTypesAndNumbers) {
  const auto mlp = from_export(kTables + "mlp.pt2")();
  const auto refused = [&](const at::Tensor& x) {
    return message_of<UsageError>([&] { mlp->forward(x); });
  };
  EXPECT_THAT(refused(torch::randn({6, 7})), AllOf(HasSubstr("x"), HasSubstr("7"), HasSubstr("6")));
  EXPECT_THAT(refused(torch::randn({6})), HasSubstr("x"));
  EXPECT_THAT(refused(torch::randn({6, 6, 1})), HasSubstr("x"));
  EXPECT_THAT(refused(torch::randn({6, 6}, torch::kFloat64)), HasSubstr("x"));
  EXPECT_THAT(refused(torch::zeros({6, 6}, torch::kLong)), HasSubstr("x"));
  EXPECT_THAT(message_of<UsageError>([&] { mlp->forward_all({}); }), HasSubstr("1"));
  EXPECT_THAT(message_of<UsageError>([&] { mlp->forward_named({{"y", torch::randn({6, 6})}}); }),
              AllOf(HasSubstr("y"), HasSubstr("x")));

  const auto two = from_export(kTables + "dlrm.pt2")();
  const auto ids = torch::zeros({6, 2, 3}, torch::kLong);
  two->forward_all({torch::randn({6, 5}), ids});
  // One symbol is one size.
  EXPECT_THAT(message_of<UsageError>([&] { two->forward_all({torch::randn({4, 5}), ids}); }),
              AllOf(HasSubstr("4"), HasSubstr("6")));
  // In another order.
  message_of<UsageError>([&] { two->forward_all({ids, torch::randn({6, 5})}); });
}

TEST_F(HostileModules, AnEvaluationFileOfAnotherModel) {
  EXPECT_THAT(message_of<DataError>(
                  [&] { from_export(kTables + "cnn.pt2", {.eval = kTables + "gpt.eval.pt2"}); }),
              AllOf(HasSubstr("cnn.pt2"), HasSubstr("gpt.eval.pt2")));
  // Equal names, other shapes.
  ZipFile zip = read_zip(kTables + "cnn.eval.pt2");
  change_json(zip, kWeights, [](OrderedJson& table) {
    OrderedJson& meta = table.at("config").at("head.bias").at("tensor_meta");
    meta.at("sizes")[0]["as_int"] = 4;
  });
  const auto eval = put(zip);
  EXPECT_THAT(message_of<DataError>([&] { from_export(kTables + "cnn.pt2", {.eval = eval}); }),
              HasSubstr("head.bias"));
  // A file of training where that of evaluation should be takes other inputs.
  message_of<DataError>([&] { from_export(kTables + "cnn.pt2", {.eval = kTables + "mlp.pt2"}); });
}

}  // namespace
}  // namespace tutti
