// Leaves one after another, added as the tree of so many ranks adds.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tutti/parallel/stages/tree_accumulator.h"

#include "tests/support/pipeline_ranks.h"

namespace tutti::parallel {
namespace {

using test::added_as_a_tree;
using test::drawn;
using test::Values;

TEST(TreeAccumulator, AddsAsTheTreeOfAnyNumberOfLeaves) {
  for (int count = 1; count <= 33; ++count) {
    TreeAccumulator sums;
    Values leaves;
    for (int i = 0; i < count; ++i) {
      leaves.push_back(drawn({7}, static_cast<uint64_t>(i)));
      sums.add({leaves.back()});
    }
    EXPECT_TRUE(at::equal(sums.take().at(0), added_as_a_tree(leaves))) << count;
    EXPECT_TRUE(sums.take().empty());
  }
}

TEST(TreeAccumulator, TakesAbsentLeavesForZeros) {
  constexpr int kLeaves = 5;
  for (unsigned present = 0; present < 1U << kLeaves; ++present) {
    TreeAccumulator sums;
    Values leaves;
    for (unsigned i = 0; i < kLeaves; ++i) {
      leaves.push_back((present >> i & 1) != 0 ? at::cat({drawn({3}, i), at::tensor({-0.0F})})
                                               : at::Tensor());
      sums.add({leaves.back(), at::ones({2})});
    }
    const auto got = sums.take();
    const at::Tensor expected = added_as_a_tree(leaves);
    ASSERT_EQ(got[0].defined(), expected.defined()) << present;
    if (expected.defined()) {
      EXPECT_TRUE(at::equal(got[0], expected)) << present;
      EXPECT_TRUE(at::equal(at::signbit(got[0]), at::signbit(expected))) << present;
    }
    EXPECT_TRUE(at::equal(got[1], at::full({2}, kLeaves)));
  }
}

TEST(TreeAccumulator, NeverWritesToLeavesOrGivesTheirMemory) {
  const at::Tensor one = at::ones({1}).expand({4});  // all elements in one place
  for (int count = 1; count <= 4; ++count) {
    TreeAccumulator sums;
    for (int i = 0; i < count; ++i) sums.add({one, one});
    const auto got = sums.take();
    EXPECT_FALSE(got[0].is_alias_of(got[1]));
    EXPECT_FALSE(got[0].is_alias_of(one));
    EXPECT_TRUE(at::equal(got[0], at::full({4}, count)));
    EXPECT_TRUE(at::equal(one, at::ones({4})));
  }
}

TEST(TreeAccumulator, RoundsSixteenBitsOnce) {
  TreeAccumulator sums;
  const at::Tensor small = at::full({1}, 1.0 / 256, at::kBFloat16);
  sums.add({at::ones({1}, at::kBFloat16)});
  for (int i = 0; i < 3; ++i) sums.add({small});
  const at::Tensor got = sums.take().at(0);
  EXPECT_EQ(got.scalar_type(), at::kBFloat16);
  EXPECT_TRUE(at::equal(got, at::full({1}, 1 + 3.0 / 256, at::kFloat).to(at::kBFloat16)));
  EXPECT_FALSE(at::equal(got, at::ones({1}, at::kBFloat16)));
}

}  // namespace
}  // namespace tutti::parallel
