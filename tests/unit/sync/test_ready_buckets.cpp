// In which order buckets go, whatever the order in which their gradients become ready.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <thread>
#include <vector>

#include "tutti/base/error.h"
#include "tutti/comm/shm/shm.h"
#include "tutti/sync/detail/ready_buckets.h"

#include "tests/support/message_of.h"

namespace tutti::detail {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// "a" to "e", of which "c" is frozen.
Slots five() {
  std::vector<ParameterSlot> slots;
  for (const std::string name : {"a", "b", "c", "d", "e"})
    slots.push_back({.name = name, .shape = {4}, .num_elements = 4, .trained = name != "c"});
  return Slots::of(std::move(slots));
}

/// What has gone, by number of the bucket.
struct Sent {
  explicit Sent(std::vector<std::vector<int>> parameters) {
    std::vector<Bucket> buckets;
    for (const auto& some : parameters) buckets.push_back({.parameters = some});
    ready.cut(buckets);
    ready.begin_step();
  }

  const Slots layout = five();
  std::vector<int> gone{};
  ReadyBuckets ready{layout, [this](int bucket) { gone.push_back(bucket); }};
};

TEST(ReadyBuckets, GoInOrderOfNumberOnceAllBeforeThemAreFull) {
  const std::vector<std::vector<int>> all{{4, 3}, {1}, {0}};
  std::vector<int> order{0, 1, 3, 4};
  do {
    Sent sent(all);
    std::vector<int> there;
    for (const int parameter : order) {
      sent.ready.put(parameter);
      there.push_back(parameter);
      const auto is_there = [&](int one) { return std::ranges::find(there, one) != there.end(); };
      std::vector<int> expected;
      for (int bucket = 0; bucket < 3 && std::ranges::all_of(all[bucket], is_there); ++bucket)
        expected.push_back(bucket);
      EXPECT_EQ(sent.gone, expected) << testing::PrintToString(there);
      EXPECT_EQ(sent.ready.num_sent(), std::ssize(expected));
    }
    EXPECT_TRUE(sent.ready.all_sent());
  } while (std::ranges::next_permutation(order).found);
}

TEST(ReadyBuckets, WaitForAGradientThatIsMissing) {
  Sent sent({{4, 3}, {1, 0}});
  for (const int parameter : {4, 1, 0}) sent.ready.put(parameter);
  EXPECT_THAT(sent.gone, IsEmpty());
  EXPECT_FALSE(sent.ready.all_sent());
  EXPECT_FALSE(sent.ready.has(3));
  EXPECT_TRUE(sent.ready.has(0));
  sent.ready.put(3);
  EXPECT_THAT(sent.gone, ElementsAre(0, 1));
}

TEST(ReadyBuckets, KnowNothingOfFrozenParameters) {
  Sent sent({{4, 3, 1, 0}});
  EXPECT_EQ(sent.ready.bucket_of(2), -1);
  for (int twice = 0; twice < 2; ++twice) sent.ready.put(2);
  EXPECT_FALSE(sent.ready.has(2));
  EXPECT_FALSE(sent.ready.has_any());
}

TEST(ReadyBuckets, TakeAGradientOnceAStep) {
  Sent sent({{4, 3}, {1, 0}});
  sent.ready.require_new(3);
  sent.ready.put(3);
  EXPECT_TRUE(sent.ready.has_any());
  const auto twice = AllOf(HasSubstr("\"d\" got a second gradient"), HasSubstr("backward() ran"));
  EXPECT_THAT(test::message_of<UsageError>([&] { sent.ready.require_new(3); }), twice);
  EXPECT_THAT(test::message_of<UsageError>([&] { sent.ready.put(3); }), twice);
  sent.ready.put(4);
  EXPECT_THAT(sent.gone, ElementsAre(0)) << "the second one counts for nothing";
  sent.ready.begin_step();
  EXPECT_FALSE(sent.ready.has_any());
  for (const int parameter : {3, 4, 0, 1}) sent.ready.put(parameter);
  EXPECT_THAT(sent.gone, ElementsAre(0, 0, 1));
}

TEST(ReadyBuckets, AgreeOnTheOrderThatRankZeroHasSeen) {
  const std::vector<std::vector<int>> seen{{1, 4, 0, 3}, {4, 3, 1, 0}};
  std::vector<std::vector<int>> agreed(2);
  auto engines = make_shm_threads(2);
  std::vector<std::jthread> ranks;
  for (const int rank : {0, 1})
    ranks.emplace_back([&, rank, group = Group(std::move(engines[rank]))] {
      Sent sent({{4, 3, 1, 0}});
      for (const int parameter : seen[rank]) sent.ready.put(parameter);
      EXPECT_FALSE(sent.ready.agreed());
      agreed[rank] = sent.ready.agree_on_order(group, Millis{30'000});
      EXPECT_TRUE(sent.ready.agreed());
    });
  ranks.clear();
  EXPECT_THAT(agreed, ::testing::Each(seen[0]));
}

}  // namespace
}  // namespace tutti::detail
