// The order in which ranks add their blocks: as text, for every number of blocks and ranks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <string>
#include <vector>

#include "tutti/parallel/tensor/detail/block_tree.h"

namespace tutti::parallel {
namespace {

using detail::block_tree;
using detail::BlockTree;
using ::testing::ElementsAre;

using Words = std::vector<std::string>;

void add_words(Words& partials, const std::vector<BlockTree::Step>& steps) {
  for (const auto& [into, from] : steps) {
    EXPECT_FALSE(partials.at(into).empty() || partials.at(from).empty());
    partials[into] = "(" + partials[into] + "+" + partials[from] + ")";
    partials[from].clear();
  }
}

Words leaves(int blocks) {
  Words words;
  for (int block = 0; block < blocks; ++block) words.push_back(std::to_string(block));
  return words;
}

std::string whole_tree(const ReductionShape& shape) {
  Words words = leaves(shape.replicas());
  add_words(words, shape.steps());
  return words[0];
}

/// What all ranks together add, each of them its own first.
std::string dealt_tree(int blocks, const ReductionShape& ranks) {
  Words gathered(static_cast<size_t>(blocks));
  for (int rank = 0; rank < ranks.replicas(); ++rank) {
    const BlockTree tree = block_tree(blocks, rank, ranks);
    Words own(static_cast<size_t>(blocks));
    for (int b = tree.first_blocks[rank]; b < tree.first_blocks[rank + 1]; ++b)
      own[b] = std::to_string(b);
    add_words(own, tree.own);
    for (const int node : tree.nodes[rank]) gathered[node] = own[node];
  }
  const BlockTree tree = block_tree(blocks, 0, ranks);
  if (tree.by_group) {  // the group adds: blocks that are left, by rank
    Words of_ranks;
    for (const auto& nodes : tree.nodes) of_ranks.push_back(gathered[nodes.at(0)]);
    add_words(of_ranks, ranks.steps());
    EXPECT_EQ(of_ranks[0], whole_tree(ReductionShape::flat(blocks)));
  }
  add_words(gathered, tree.rest);
  return gathered[0];
}

TEST(BlockTree, IsTheOneOfAllBlocksHoweverTheyAreDealt) {
  for (int blocks = 1; blocks <= 24; ++blocks)
    for (int ranks = 1; ranks <= blocks; ++ranks)
      EXPECT_EQ(dealt_tree(blocks, ReductionShape::flat(ranks)),
                whole_tree(ReductionShape::flat(blocks)))
          << blocks << " blocks on " << ranks;
  EXPECT_EQ(dealt_tree(6, ReductionShape::parse("2x3")), whole_tree(ReductionShape::flat(6)));
}

TEST(BlockTree, GroupsAddWhereRanksHaveWholeSubtrees) {
  struct Case {
    int blocks;
    const char* ranks;
    bool by_group;
    const char* why;
  };
  const Case cases[] = {
      {1, "1", true, "nothing to add"},
      {4, "1", true, "all of the tree"},
      {4, "2", true, "(0+1) and (2+3)"},
      {4, "4", true, "one each"},
      {4, "3", false, "0+1, 2, 3: the group would add (01+2)+3"},
      {6, "3", true, "pairs"},
      {6, "2", false, "0 to 2 is no subtree of 6"},
      {8, "2", true, "(0..3) and (4..7)"},
      {8, "2x2", true, "2 hosts of 2 add as 4 do"},
      {6, "2x3", false, "2 hosts of 3 do not add as 6 do"},
      {65, "2", false, "33 and 32 blocks"},
      {12, "3", true, "fours"},
  };
  for (const Case& one : cases)
    EXPECT_EQ(block_tree(one.blocks, 0, ReductionShape::parse(one.ranks)).by_group, one.by_group)
        << one.blocks << " on " << one.ranks << ": " << one.why;
}

// As docs/design/model_parallel.md says.
TEST(BlockTree, GroupsAddPowersOfTwoOnEachOfTheRanks) {
  for (int ranks = 2; ranks <= 8; ++ranks)
    for (int each = 1; each <= 9; ++each)
      EXPECT_EQ(block_tree(ranks * each, 0, ReductionShape::flat(ranks)).by_group,
                std::has_single_bit(static_cast<unsigned>(each)))
          << ranks << " ranks of " << each;
}

TEST(BlockTree, RanksHaveAsManyBlocksOrOneMore) {
  EXPECT_THAT(block_tree(7, 0, ReductionShape::flat(3)).first_blocks, ElementsAre(0, 3, 5, 7));
  const auto nodes = block_tree(6, 0, ReductionShape::flat(2)).nodes;
  EXPECT_THAT(nodes[0], ElementsAre(0, 2));  // 0+1, 2
  EXPECT_THAT(nodes[1], ElementsAre(3, 4));  // 3, 4+5
}

}  // namespace
}  // namespace tutti::parallel
