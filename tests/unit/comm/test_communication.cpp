// What is asked for in words becomes an engine, a table and an order; engines count what they do.
#include <gmock/gmock.h>

#include "tutti/base/error.h"
#include "tutti/comm/engine/engine_counts.h"
#include "tutti/comm/schedule/communication.h"

#include "tests/support/message_of.h"

namespace tutti {
namespace {

using test::message_of;
using testing::AllOf;
using testing::HasSubstr;

CommunicationPlan plan(const std::string& name, std::optional<Order> order = std::nullopt) {
  return plan_of({.implementation = name, .order = order}, built_in_table());
}

Algorithm chosen(const CommunicationPlan& plan, Question question) {
  question.order = plan.order;
  return choose(question, plan.table);
}

TEST(Communication, EnginesAreAskedForByTheirNames) {
  for (const std::string& name :
       std::vector<std::string>{"auto", "shm", "tcp", "hier", "mpi", "nccl"}) {
    EXPECT_EQ(plan(name).engine, name);
    EXPECT_EQ(plan(name).algorithm, "");
    EXPECT_EQ(plan(name).order, Order::fixed);
    EXPECT_EQ(plan(name, Order::any).order, Order::any);
    EXPECT_EQ(plan(name).table, built_in_table());
  }
}

TEST(Communication, RingAndTreeAreOfAllSumsOfAllSizes) {
  EXPECT_EQ(plan("ring").engine, "tcp");
  EXPECT_EQ(plan("ring").order, Order::any);
  EXPECT_EQ(plan("tree").order, Order::fixed);
  for (const int ranks : {2, 3, 4, 7, 16})
    for (const int64_t bytes : {int64_t{4}, int64_t{4096}, int64_t{1} << 20, int64_t{1} << 30})
      for (const bool flat : {true, false}) {
        const Question sum{.num_bytes = bytes, .ranks = ranks, .flat_shape = flat};
        EXPECT_EQ(chosen(plan("ring"), sum), Algorithm::ring) << ranks << " " << bytes;
        EXPECT_EQ(chosen(plan("tree"), sum), Algorithm::tree) << ranks << " " << bytes;
        EXPECT_EQ(chosen(plan("tree", Order::any), sum), Algorithm::tree) << ranks << " " << bytes;
      }
}

// What they cannot do goes as it goes without them.
TEST(Communication, TheRestIsTheTables) {
  for (const Collective other : {Collective::broadcast, Collective::all_gather,
                                 Collective::reduce_scatter, Collective::all_to_all}) {
    const Question question{.collective = other, .num_bytes = 1 << 20, .ranks = 4};
    EXPECT_EQ(chosen(plan("tree"), question), chosen(plan("tcp"), question)) << name_of(other);
    EXPECT_EQ(chosen(plan("ring"), question), chosen(plan("tcp", Order::any), question))
        << name_of(other);
  }
  const Question rounded{.num_bytes = 1 << 20, .ranks = 4, .partials = false};
  EXPECT_EQ(chosen(plan("ring"), rounded), chosen(plan("tcp", Order::any), rounded));
}

TEST(Communication, WhatCannotBeIsRefused) {
  const auto why = [](const CommunicationOptions& options) {
    return message_of<UsageError>([&] { check_communication(options); });
  };
  EXPECT_THAT(why({.implementation = "rign"}),
              AllOf(HasSubstr("--communication rign"), HasSubstr("did you mean \"ring\"?")));
  EXPECT_THAT(why({.implementation = "ring", .order = Order::fixed}),
              AllOf(HasSubstr("order of its own"), HasSubstr("expected --sum-order any")));
  EXPECT_THAT(why({.bytes_per_pack = 63}), HasSubstr("bytes_per_pack is 63; expected 64 to"));
  EXPECT_THAT(why({.bytes_per_pack = (1 << 30) + 1}), HasSubstr("expected 64 to 1073741824"));
  EXPECT_THAT(why({.timeout = Millis{-5}}), HasSubstr("-5 ms; expected 1 or more"));
  for (const std::string& name : communication_names())
    EXPECT_NO_THROW(check_communication({.implementation = name, .bytes_per_pack = 64}));
}

TEST(Communication, IsSaidInOneSentence) {
  EXPECT_EQ(sentence_of({.asked = "ring",
                         .engine = "tcp",
                         .algorithm = "ring",
                         .why = "it was asked for",
                         .order = Order::any}),
            "engine tcp, all-reduces by ring, since it was asked for; sums in any order");
  EXPECT_EQ(sentence_of({}),
            "nothing is exchanged, since the replicas take turns on one thread; sums in the fixed "
            "order");
}

std::vector<EngineCount> counts_of(const std::string& engine) {
  std::vector<EngineCount> all = engine_counts();
  std::erase_if(all, [&](const EngineCount& one) { return one.engine != engine; });
  return all;
}

TEST(EngineCounts, AddUpByCollectiveAndAlgorithmAndOutliveEngines) {
  static constexpr std::string_view kWays[] = {"straight", "around"};
  std::vector<float> numbers(6);
  const Operation sum{.collective = Collective::all_reduce, .output = span_of(std::span(numbers))};
  const Operation gather{.collective = Collective::all_gather,
                         .input = span_of(std::span(numbers).first(2)),
                         .output = span_of(std::span(numbers))};
  {
    EngineCounter one("counted", kWays), other("counted", kWays), plain("counted plainly");
    one.count(sum, 0);
    one.count(sum, 1);
    other.count(sum, 1);
    other.count(gather, 0);
    other.count({.collective = Collective::send}, 0);
    plain.count(gather);
  }
  EngineCounter third("counted", kWays);
  third.count(sum, 1);
  const auto counts = counts_of("counted");
  ASSERT_EQ(counts.size(), 3u);
  EXPECT_EQ(counts[0].algorithm, "around");
  EXPECT_EQ(counts[0].collective, Collective::all_reduce);
  EXPECT_EQ(counts[0].calls, 3);
  EXPECT_EQ(counts[0].bytes, 3 * 24);
  EXPECT_EQ(counts[1].algorithm, "straight");
  EXPECT_EQ(counts[1].calls, 1);
  EXPECT_EQ(counts[2].collective, Collective::all_gather);
  EXPECT_EQ(counts[2].bytes, 24);
  ASSERT_EQ(counts_of("counted plainly").size(), 1u);
  EXPECT_EQ(counts_of("counted plainly")[0].algorithm, "");
}

}  // namespace
}  // namespace tutti
