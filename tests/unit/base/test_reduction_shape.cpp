#include <string>
#include <vector>

#include "tutti/base/reduction_shape.h"

#include "tests/support/expect.h"

namespace tutti {
namespace {

// The tree as text, "((0+1)+2)", by carrying the steps out.
std::string tree_of(const ReductionShape& shape) {
  std::vector<std::string> partial;
  for (int rank = 0; rank < shape.replicas(); ++rank) partial.push_back(std::to_string(rank));
  std::vector<bool> used(partial.size(), false);
  for (const auto& [into, from] : shape.steps()) {
    EXPECT_FALSE(used.at(into)) << "a partial that was added away is added to";
    EXPECT_FALSE(used.at(from)) << "a partial is added twice";
    partial[into] = "(" + partial[into] + "+" + partial[from] + ")";
    used[from] = true;
  }
  return partial.at(0);
}

// The definition once more, by recursion on the words of the design: the largest power of two below
// the count on the left, what is left over on the right.
std::string expected_tree(const std::vector<std::string>& leaves) {
  if (leaves.size() == 1) return leaves[0];
  size_t left = 1;
  while (left * 2 < leaves.size()) left *= 2;
  const auto cut = leaves.begin() + static_cast<long>(left);
  return "(" + expected_tree({leaves.begin(), cut}) + "+" + expected_tree({cut, leaves.end()}) +
         ")";
}

TEST(ReductionShape, TreesAreThoseWrittenDown) {
  struct Case {
    const char* shape;
    const char* tree;
  };
  const Case cases[] = {
      {"1", "0"},
      {"2", "(0+1)"},
      {"3", "((0+1)+2)"},
      {"4", "((0+1)+(2+3))"},
      {"5", "(((0+1)+(2+3))+4)"},
      {"6", "(((0+1)+(2+3))+(4+5))"},
      {"7", "(((0+1)+(2+3))+((4+5)+6))"},
      {"8", "(((0+1)+(2+3))+((4+5)+(6+7)))"},
      {"9", "((((0+1)+(2+3))+((4+5)+(6+7)))+8)"},
      {"2x3", "(((0+1)+2)+((3+4)+5))"},
      {"3x2", "(((0+1)+(2+3))+(4+5))"},
      {"3x3", "((((0+1)+2)+((3+4)+5))+((6+7)+8))"},
      {"3+1", "(((0+1)+2)+3)"},
      {"1+3", "(0+((1+2)+3))"},
      {"1+1+1", "((0+1)+2)"},
      {"2+4+1", "(((0+1)+((2+3)+(4+5)))+6)"},
  };
  for (const Case& c : cases) EXPECT_EQ(tree_of(ReductionShape::parse(c.shape)), c.tree) << c.shape;
}

TEST(ReductionShape, FlatTreesFollowTheDefinition) {
  for (int n = 1; n <= 70; ++n) {
    std::vector<std::string> leaves;
    for (int rank = 0; rank < n; ++rank) leaves.push_back(std::to_string(rank));
    const auto shape = ReductionShape::flat(n);
    EXPECT_EQ(shape.replicas(), n);
    EXPECT_EQ(shape.steps().size(), static_cast<size_t>(n - 1));
    EXPECT_EQ(tree_of(shape), expected_tree(leaves));
  }
}

TEST(ReductionShape, PowersOfTwoGiveOneTreeOnAllTopologies) {
  const std::vector<std::vector<const char*>> same = {
      {"2", "2x1", "1+1"},
      {"4", "2x2", "4x1", "1+1+1+1", "1x4", "2+2"},
      {"8", "2x4", "4x2", "8x1", "4+4", "2+2+2+2"},
      {"6", "3x2", "2+2+2"},  // hosts of two: pairs combine as they do in a host of six
  };
  for (const auto& group : same)
    for (const char* text : group)
      EXPECT_EQ(tree_of(ReductionShape::parse(text)), tree_of(ReductionShape::parse(group[0])))
          << text;
  EXPECT_NE(tree_of(ReductionShape::parse("6")), tree_of(ReductionShape::parse("2x3")));
  EXPECT_NE(tree_of(ReductionShape::parse("4")), tree_of(ReductionShape::parse("3+1")));
}

TEST(ReductionShape, TextIsReadBack) {
  const std::pair<const char*, const char*> cases[] = {
      {"1", "1"},     {"7", "7"},     {"1x5", "5"},   {"2x3", "2x3"},
      {"3+3", "2x3"}, {"3+1", "3+1"}, {"1+1", "2x1"}, {"2+2+1", "2+2+1"},
  };
  for (const auto& [text, printed] : cases) {
    const auto shape = ReductionShape::parse(text);
    EXPECT_EQ(shape.to_string(), printed);
    EXPECT_EQ(ReductionShape::parse(shape.to_string()), shape);
  }
  EXPECT_EQ(ReductionShape::hosts({3, 1}), ReductionShape::parse("3+1"));
  EXPECT_EQ(ReductionShape::hosts({3, 3}).replicas_per_host(), (std::vector<int>{3, 3}));
  EXPECT_FALSE(ReductionShape::flat(4) == ReductionShape::parse("2x2"));  // other hosts, same tree
}

TEST(ReductionShape, ThoseOfOneTreeAddAlike) {
  std::vector<ReductionShape> shapes;
  for (const char* text : {"1",   "2",   "1x2", "3", "2+1", "1x3", "4",   "2x2", "1x4", "3+1", "6",
                           "2x3", "3x2", "4+2", "8", "2x4", "4x2", "5+3", "9",   "3x3", "8+1"})
    shapes.push_back(ReductionShape::parse(text));
  for (const auto& a : shapes)
    for (const auto& b : shapes)
      EXPECT_EQ(a.adds_like(b), tree_of(a) == tree_of(b)) << a.to_string() << ", " << b.to_string();
  EXPECT_TRUE(shapes[6].adds_like(shapes[7]));
  EXPECT_FALSE(shapes[10].adds_like(shapes[11]));
}

TEST(ReductionShape, BadTextIsAUsageErrorThatShowsTheForms) {
  for (const char* text :
       {"",    "0",     "-1",   "x",     "2x",          "x3",        "2x0",
        "0x2", "2x3x4", "3+",   "+3",    "3++1",        "3+0",       " 4",
        "4 ",  "4.0",   "four", "2x3+1", "99999999999", "1000x1001", "999999+2"}) {
    EXPECT_THAT(message_of<UsageError>([&] { ReductionShape::parse(text); }),
                AllOf(HasSubstr('"' + std::string(text) + '"'), HasSubstr("HxN")));
  }
}

TEST(ReductionShape, HostsNeedReplicas) {
  EXPECT_THROW(ReductionShape::flat(0), Error);
  EXPECT_THROW(ReductionShape::hosts({2, -1}), Error);
}

}  // namespace
}  // namespace tutti
