// `tutti show hierarchy`: what leaves a host, and in which order ranks go through the phases.
#include <map>

#include "tutti/cli/show/hierarchy.h"

#include "tests/unit/show/made_events.h"
#include "tests/unit/show/shown_files.h"

namespace tutti::cli {
namespace {

TEST(ShowHierarchy, ByteCountsAreThoseOfTheFormulaAndOnRails) {
  for (const auto& [hosts, ranks] : {std::pair(2, 2), {3, 2}, {2, 3}}) {
    const int64_t bytes = int64_t{64} * hosts * ranks * 4096;
    const HierarchyTrace trace = run_hierarchy(hosts, ranks, bytes);
    EXPECT_TRUE(trace.correct);
    const Shown shown = hierarchy_shown(trace);
    for (const auto& left : shown.figures.at("left_host_bytes"))
      EXPECT_EQ(left.get<int64_t>() * hosts, 2 * (hosts - 1) * bytes) << hosts << " x " << ranks;
    for (const auto& one : shown.figures.at("messages")) {
      const auto from = one.at("from").get<int>(), to = one.at("to").get<int>();
      EXPECT_EQ(from % ranks, to % ranks) << "a rail joins ranks of one place in their hosts";
      EXPECT_NE(from / ranks, to / ranks);
    }
  }
}

TEST(ShowHierarchy, EachRankGoesThroughThreePhasesInOrder) {
  const Shown shown = hierarchy_shown(run_hierarchy(2, 2, 1 << 20));
  std::map<int, std::vector<std::string>> phases;
  std::map<int, double> ended;
  for (const auto& one : shown.figures.at("phases")) {
    const int rank = one.at("rank").get<int>();
    phases[rank].push_back(one.at("what").get<std::string>());
    EXPECT_GE(one.at("begin_us").get<double>(), ended[rank]);
    ended[rank] = one.at("end_us").get<double>();
  }
  ASSERT_EQ(phases.size(), 4u);
  for (const auto& [rank, names] : phases)
    EXPECT_EQ(names,
              (std::vector<std::string>{"adds up inside its host", "sums with the other hosts",
                                        "gets the rest from inside its host"}))
        << rank;
}

// Pieces of one size in the same round: two of one operation, one of the next.
TEST(ShowHierarchy, APieceIsTheOneOfItsOperationAndTurn) {
  HierarchyTrace trace{
      .hosts = 2, .ranks_per_host = 1, .bytes = 4096, .correct = true, .events = {}};
  for (int rank = 0; rank < 2; ++rank)
    for (const char* name : {"hier.reduced_inside", "hier.between", "hier.gathered_inside"})
      trace.events.push_back(test::made_event(name, 100, 90, {{"rank", rank}}));
  const auto add = [&](const char* name, double when_us, int rank, int64_t number, int64_t begin) {
    trace.events.push_back(test::made_event(name, when_us, 5,
                                            {{"rank", rank},
                                             {"peer", 1 - rank},
                                             {"number", number},
                                             {"round", 0},
                                             {"begin", begin},
                                             {"bytes", 1024}}));
    trace.events.back().fields.emplace("group", std::string("rail 0"));
  };
  int at = 20;
  for (const auto& [number, begin] : {std::pair(7, 0), {7, 256}, {8, 0}}) {
    add("tcp.sent", at, 0, number, begin);
    add("tcp.received", at + 9, 1, number, begin);
    at += 20;
  }
  const OrderedJson figures = hierarchy_shown(trace).figures;
  ASSERT_EQ(figures.at("messages").size(), 3u);
  std::vector<double> took;
  for (const auto& one : figures.at("messages"))
    took.push_back(one.at("received_us").get<double>() - one.at("sent_us").get<double>());
  EXPECT_THAT(took, testing::Each(14)) << "9 us, and the 5 of sending";
}

TEST(ShowHierarchy, TheProgramDrawsIt) {
  const ShownFiles files("hierarchy");
  EXPECT_EQ(files.figures.at("correct"), true);
  EXPECT_THAT(files.result.out, HasSubstr("rank 0 -> rank 2: "));
  EXPECT_THAT(files.result.out, HasSubstr("2(H-1)/H S"));
  files.expect_xml();
}

}  // namespace
}  // namespace tutti::cli
