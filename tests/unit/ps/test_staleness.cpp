#include <gmock/gmock.h>

#include <algorithm>

#include "tutti/base/error.h"
#include "tutti/base/random.h"
#include "tutti/ps/spec/staleness.h"

namespace tutti::ps {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;
using ::testing::ThrowsMessage;

TEST(Staleness, IsOneNumberOrInf) {
  EXPECT_TRUE(Staleness().synchronous());
  EXPECT_EQ(Staleness::parse("0", "--staleness"), Staleness());
  EXPECT_EQ(Staleness::parse("4", "--staleness"), Staleness(4));
  EXPECT_EQ(Staleness::parse("inf", "--staleness"), Staleness::unbounded());
  for (const char* text : {"0", "1", "17", "inf"})
    EXPECT_EQ(Staleness::parse(text, "--staleness").text(), text);
  EXPECT_TRUE(Staleness(3).bounded());
  EXPECT_FALSE(Staleness::unbounded().bounded());
  EXPECT_FALSE(Staleness::unbounded().synchronous());
  EXPECT_TRUE(Staleness::unbounded().allows(int64_t{1} << 60));
  for (const char* text : {"-1", "", "x", "1.5", "4 ", "Inf", "99999999999999999999"})
    EXPECT_THAT([&] { Staleness::parse(text, "--staleness"); },
                ThrowsMessage<UsageError>(AllOf(HasSubstr("--staleness"), HasSubstr("inf"))))
        << text;
  EXPECT_THROW(Staleness(-1), UsageError);
}

TEST(StalenessGate, SynchronousWaitsForAll) {
  StalenessGate gate(3, Staleness(0));
  EXPECT_TRUE(gate.may_begin(0));
  EXPECT_FALSE(gate.may_begin(1));
  EXPECT_THAT(gate.waits_for(1), ElementsAre(0, 1, 2));
  gate.pushed(0, 0);
  gate.pushed(2, 0);
  EXPECT_THAT(gate.waits_for(1), ElementsAre(1));
  gate.pushed(1, 0);
  EXPECT_TRUE(gate.may_begin(1));
  EXPECT_THAT(gate.waits_for(1), IsEmpty());
}

TEST(StalenessGate, BoundedLetsTheFastestRunAhead) {
  StalenessGate gate(2, Staleness(2));
  for (int64_t step = 0; step <= 2; ++step) {
    EXPECT_TRUE(gate.may_begin(step));
    gate.pushed(0, step);
  }
  EXPECT_FALSE(gate.may_begin(3));
  EXPECT_THAT(gate.waits_for(3), ElementsAre(1));
  gate.pushed(1, 0);
  EXPECT_TRUE(gate.may_begin(3));
  EXPECT_FALSE(gate.may_begin(4));
}

TEST(StalenessGate, UnboundedNeverWaits) {
  const StalenessGate gate(2, Staleness::unbounded());
  EXPECT_TRUE(gate.may_begin(1'000'000));
  EXPECT_THAT(gate.waits_for(1'000'000), IsEmpty());
}

TEST(StalenessGate, WhatWasCountedBeforeChangesNothing) {
  StalenessGate gate(1, Staleness(0));
  gate.pushed(0, 0);
  gate.pushed(0, 0);
  EXPECT_EQ(gate.slowest(), 1);
  EXPECT_THAT([&] { gate.pushed(0, 2); },
              ThrowsMessage<UsageError>(AllOf(HasSubstr("worker 0"), HasSubstr("step 2"))));
  EXPECT_THAT([&] { gate.pushed(7, 0); }, ThrowsMessage<UsageError>(HasSubstr("worker 7")));
}

TEST(StalenessGate, NobodyWaitsForWhoIsGone) {
  StalenessGate gate(3, Staleness(0));
  gate.pushed(0, 0);
  gate.pushed(1, 0);
  gate.leave(2);
  gate.leave(2);
  EXPECT_TRUE(gate.may_begin(1));
  EXPECT_FALSE(gate.is_here(2));
  EXPECT_EQ(gate.num_here(), 2);
  gate.pushed(0, 1);
  EXPECT_EQ(gate.join(2), 1) << "as the slowest, so that it holds nobody up for the past";
  EXPECT_THAT(gate.waits_for(2), ElementsAre(1, 2));
  EXPECT_EQ(gate.begun_of(2), 1);
  EXPECT_EQ(gate.begun_of(0), 0);
}

TEST(StalenessGate, ProgressOutlivesTheLastWorker) {
  StalenessGate gate(1, Staleness(0));
  for (int64_t step = 0; step < 5; ++step) gate.pushed(0, step);
  gate.leave(0);
  EXPECT_EQ(gate.slowest(), 5);
  EXPECT_EQ(gate.join(3), 5);
}

// Workers that only do what the gate allows never drift further apart than the bound, and somebody
// can always go on.
TEST(StalenessGate, BoundHoldsUnderAnySchedule) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    RandomStream random(seed);
    const int workers = 1 + static_cast<int>(random.below(5));
    const auto bound = static_cast<int64_t>(random.below(4));
    StalenessGate gate(workers, Staleness(bound));
    std::vector<int64_t> steps(static_cast<size_t>(workers));
    for (int move = 0; move < 300; ++move) {
      const auto worker = random.below(static_cast<uint32_t>(workers));
      int64_t& step = steps[worker];
      if (gate.may_begin(step)) gate.pushed(static_cast<int>(worker), step++);
      const auto [least, most] = std::ranges::minmax(steps);
      ASSERT_LE(most - least, bound + 1);
      ASSERT_TRUE(gate.may_begin(least)) << "the slowest never waits";
      ASSERT_EQ(gate.slowest(), least);
    }
  }
}

TEST(StalenessHistogram, CountsMeansAndMerges) {
  StalenessHistogram one;
  EXPECT_EQ(one.count(), 0);
  EXPECT_EQ(one.mean(), 0);
  EXPECT_EQ(one.most(), 0);
  for (int64_t staleness : {0, 0, 1, 3}) one.add(staleness);
  EXPECT_EQ(one.count(), 4);
  EXPECT_EQ(one.mean(), 1);
  EXPECT_EQ(one.most(), 3);
  StalenessHistogram other;
  other.add(5);
  other.add(0);
  one.merge(other);
  EXPECT_EQ(one.count(), 6);
  EXPECT_EQ(one.mean(), 1.5);
  EXPECT_THAT(one.bins(), ElementsAre(Pair(0, 3), Pair(1, 1), Pair(3, 1), Pair(5, 1)));
}

}  // namespace
}  // namespace tutti::ps
