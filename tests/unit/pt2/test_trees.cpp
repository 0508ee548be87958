// Trees of Python's containers, as torch.utils._pytree writes them.
#include <gtest/gtest.h>

#include "tutti/pt2/tree.h"

#include "tests/support/expect.h"

namespace tutti::pt2 {
namespace {

const std::string kLeaf = R"({"type": null, "context": null, "children_spec": []})";

std::string spec(const std::string& type, const std::string& context,
                 const std::vector<std::string>& children) {
  std::string list;
  for (const std::string& child : children) list += (list.empty() ? "" : ", ") + child;
  return R"({"type": ")" + type + R"(", "context": )" + context + R"(, "children_spec": [)" + list +
         "]}";
}

Tree read(const std::string& tree) { return read_tree("[1, " + tree + "]", "spec"); }

TEST(Trees, NamesOfLeavesAreKeysAndNumbersOnTheWay) {
  EXPECT_THAT(leaf_names(read(kLeaf), "output"), ElementsAre("output"));
  EXPECT_THAT(leaf_names(read(spec("builtins.tuple", R"("null")", {kLeaf, kLeaf})), "output"),
              ElementsAre("0", "1"));
  const std::string dictionary = spec("builtins.dict", R"("[\"b\", \"a\"]")", {kLeaf, kLeaf});
  EXPECT_THAT(leaf_names(read(dictionary), "output"), ElementsAre("b", "a"));
  EXPECT_THAT(leaf_names(read(spec("builtins.list", R"("null")", {kLeaf, dictionary})), "output"),
              ElementsAre("0", "1.b", "1.a"));
  EXPECT_EQ(read(spec("builtins.list", R"("null")", {kLeaf, dictionary})).leaves(), 3u);
}

TEST(Trees, ContainersOfOthersAreDictionariesWhereTheyHaveKeys) {
  const Tree output =
      read(spec("transformers.CausalLMOutput", R"("[\"loss\", \"logits\"]")", {kLeaf, kLeaf}));
  EXPECT_EQ(output.kind, Tree::Kind::dictionary);
  EXPECT_THAT(leaf_names(output, "output"), ElementsAre("loss", "logits"));
  const Tree of_default =
      read(spec("collections.defaultdict", R"("[\"builtins.list\", [\"x\"]]")", {kLeaf}));
  EXPECT_THAT(leaf_names(of_default, "output"), ElementsAre("x"));
  EXPECT_THAT(leaf_names(read(spec("nets.Pair", R"("no JSON")", {kLeaf, kLeaf})), "output"),
              ElementsAre("0", "1"));
  EXPECT_THAT(leaf_names(read(spec("builtins.dict", R"("[0, 1]")", {kLeaf, kLeaf})), "output"),
              ElementsAre("0", "1"));
}

TEST(Trees, ArgumentsAreCalledAsForwardCallsThem) {
  const std::string positional =
      spec("builtins.tuple", R"("null")",
           {kLeaf, spec("builtins.dict", R"("[\"ids\"]")", {kLeaf}), kLeaf});
  const std::string by_name = spec("builtins.dict", R"("[\"mask\"]")", {kLeaf});
  const Tree tree = read(spec("builtins.tuple", R"("null")", {positional, by_name}));
  EXPECT_THAT(argument_names(tree, {"x", "batch"}),
              ElementsAre("x", "batch.ids", "input2", "mask"));
}

TEST(Trees, OtherTextsAreRefused) {
  for (const char* text : {"", "[]", "[2, {}]", "{}", "[1]", R"([1, {"type": 3}])",
                           R"([1, {"type": "builtins.list", "context": "null"}])"})
    EXPECT_THAT(message_of<DataError>([&] { read_tree(text, "place"); }), StartsWith("place: "))
        << text;
}

}  // namespace
}  // namespace tutti::pt2
