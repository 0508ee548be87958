#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <set>
#include <string_view>
#include <vector>

#include "tutti/base/error.h"
#include "tutti/base/random.h"
#include "tutti/base/sha256.h"

namespace tutti {
namespace {

TEST(Philox, GivesThePublishedVectors) {
  // kat_vectors of Random123 1.14, lines "philox4x32 10".
  constexpr uint32_t kOnes = 0xffffffff;
  EXPECT_EQ(philox(0, {0, 0, 0, 0}), (RandomBlock{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox(~uint64_t{0}, {kOnes, kOnes, kOnes, kOnes}),
            (RandomBlock{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox(0x299f31d0'a4093822, {0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}),
            (RandomBlock{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
  static_assert(philox(0, {0, 0, 0, 0})[0] == 0x6627e8d5, "usable at compile time");
}

TEST(RandomStream, CountsThroughTheBlocks) {
  RandomStream random(42);
  for (uint32_t counter = 0; counter < 3; ++counter)
    for (uint32_t word : philox(42, {counter, 0, 0, 0})) EXPECT_EQ(random(), word);
}

TEST(RandomStream, UniformStaysBelowOne) {
  EXPECT_EQ(uniform_float(0), 0.0f);
  EXPECT_LT(uniform_float(0xffffffff), 1.0f);
  EXPECT_EQ(uniform_double(0), 0.0);
  EXPECT_LT(uniform_double(~uint64_t{0}), 1.0);
  RandomStream random(1);
  double sum = 0;
  for (int i = 0; i < 10'000; ++i) sum += random.uniform();
  EXPECT_NEAR(sum / 10'000, 0.5, 0.02);  // seven standard errors
}

TEST(RandomStream, BelowHitsEveryValueEquallyOften) {
  for (uint64_t n : {1, 2, 3, 7, 10}) {
    RandomStream random(n);
    std::vector<int> seen(n);
    const int draws = 20'000;
    for (int i = 0; i < draws; ++i) ++seen.at(random.below(n));
    const double expected = double(draws) / double(n);
    for (int count : seen) EXPECT_NEAR(count, expected, 6 * std::sqrt(expected) + 1) << n;
  }
}

TEST(RandomStream, BelowHasNoBiasWhereTruncationWould) {
  // Of 3 * 2^30 values, a plain remainder of 32 bits would hit the first third twice as often.
  const uint64_t n = 3ull << 30;
  RandomStream random(5);
  int first_third = 0;
  for (int i = 0; i < 30'000; ++i) {
    const uint64_t drawn = random.below(n);
    ASSERT_LT(drawn, n);
    first_third += drawn < n / 3;
  }
  EXPECT_NEAR(first_third, 10'000, 600);
}

TEST(RandomStream, BelowKnowsNumbersBeyond32Bits) {
  for (uint64_t n : {1ull << 32, (1ull << 32) + 1, 3ull << 40, ~0ull}) {
    RandomStream random(9);
    uint64_t largest = 0;
    for (int i = 0; i < 200; ++i) {
      const uint64_t drawn = random.below(n);
      ASSERT_LT(drawn, n);
      largest = std::max(largest, drawn);
    }
    EXPECT_GT(largest, n / 2) << n;
  }
}

TEST(RandomKey, EveryPartCounts) {
  const auto init = RandomPurpose::init;
  std::set<uint64_t> keys = {random_key(1, init),
                             random_key(2, init),
                             random_key(1, RandomPurpose::dropout),
                             random_key(1, init, {0}),
                             random_key(1, init, {1}),
                             random_key(1, init, {0, 0}),
                             random_key(1, init, {0, 1}),
                             random_key(1, init, {1, 0}),
                             random_key(1, init, {1ull << 32}),
                             random_key(1ull << 32, init)};
  EXPECT_EQ(keys.size(), 10u);
  EXPECT_EQ(random_key(7, init, {1, 2, 3}), random_key(7, init, {1, 2, 3}));
}

TEST(RandomKey, DoesNotChangeBetweenVersions) {
  // What a seed means is a promise: these agree with a second program in Python.
  EXPECT_EQ(random_key(7, RandomPurpose::shuffle, {3}), 3490391918505118663u);
  EXPECT_EQ(random_permutation(8, 7), (std::vector<int64_t>{3, 4, 2, 1, 6, 0, 5, 7}));
  const auto order = random_permutation(100'000, 7);
  const std::string_view bytes(reinterpret_cast<const char*>(order.data()),
                               order.size() * sizeof order[0]);
  EXPECT_EQ(sha256_hex(bytes), "7cda547341585018b3da39b830d2d27b684c059073d139c3d8d4f851075c8c6c");
}

TEST(RandomPermutation, HoldsEveryNumberOnce) {
  for (int64_t n : {0, 1, 2, 3, 100, 65'536, 65'537, 100'003}) {
    auto order = random_permutation(n, 11);
    ASSERT_EQ(std::ssize(order), n);
    std::sort(order.begin(), order.end());
    for (int64_t i = 0; i < n; ++i) ASSERT_EQ(order[i], i) << "of " << n;
  }
  EXPECT_THROW(random_permutation(-1, 0), Error);
}

TEST(RandomPermutation, KeyDecides) {
  EXPECT_EQ(random_permutation(70'000, 1), random_permutation(70'000, 1));
  EXPECT_NE(random_permutation(70'000, 1), random_permutation(70'000, 2));
}

TEST(RandomPermutation, AllOrdersAreEquallyLikely) {
  std::map<std::vector<int64_t>, int> seen;
  const int draws = 24'000;
  for (int i = 0; i < draws; ++i) ++seen[random_permutation(4, random_key(i, RandomPurpose::test))];
  ASSERT_EQ(seen.size(), 24u);
  for (const auto& [order, count] : seen) EXPECT_NEAR(count, 1000, 190);  // six standard errors
}

TEST(RandomPermutation, LongOnesAreSpreadEvenly) {
  // Where the numbers of the first tenth land, by tenths of the result: about a hundredth in each.
  const int64_t n = 200'000;
  const auto order = random_permutation(n, 3);
  std::vector<int> landed(10);
  int64_t fixed_points = 0, ascents = 0;
  for (int64_t i = 0; i < n; ++i) {
    if (order[i] < n / 10) ++landed[i * 10 / n];
    fixed_points += order[i] == i;
    ascents += i > 0 && order[i] > order[i - 1];
  }
  for (int count : landed) EXPECT_NEAR(count, n / 100, 260);  // six standard errors
  EXPECT_LT(fixed_points, 10);                                // one is expected
  EXPECT_NEAR(double(ascents), n / 2.0, 800);                 // sd = sqrt(n / 12) = 129
}

}  // namespace
}  // namespace tutti
