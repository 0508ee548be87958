// Jobs over several hosts: network namespaces with a launcher each. What is summed, and how every
// kind of failure ends.
#include <gmock/gmock.h>

#include <csignal>
#include <cstdio>

#include "tutti/base/error.h"
#include "tutti/cluster/join.h"

#include "tests/support/hosts.h"
#include "tests/support/reduce_oracle.h"
#include "tests/support/run_workers.h"

namespace tutti::test {
namespace {

using namespace std::chrono_literals;
using testing::AnyOf;
using testing::Each;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

constexpr int64_t kElements = 100'003;

/// Sums what ordinary_values() gives each rank and compares with the oracle.
RANK_PROGRAM(sum_over_hosts) {
  Group world = join(20s);
  std::printf("engine %s shape %s\n", std::string(world.engine().name()).c_str(),
              world.reduction_shape().to_string().c_str());
  std::vector<Bytes> given;
  for (int r = 0; r < world.size(); ++r)
    given.push_back(ordinary_values(DType::float32, kElements, 3, r));
  Bytes mine = given[static_cast<size_t>(world.rank())];
  world.all_reduce({mine.data(), kElements, DType::float32}, ReduceOp::sum).wait();
  const Bytes expected = oracle(DType::float32, ReduceOp::sum, world.reduction_shape(), given);
  std::printf("%s\n", mine == expected ? "sum is right" : "sum is WRONG");
  auto half = world.split(world.rank() % 2);
  int64_t ranks = 1;
  half->all_reduce_now({&ranks, 1, DType::int64}, ReduceOp::sum);
  std::printf("half of %d has %ld by %s\n", world.size(), static_cast<long>(ranks),
              std::string(half->engine().name()).c_str());
}

/// Rank arguments[1] fails in the way of arguments[0] in the middle of training; waits give up
/// after arguments[2] ms.
RANK_PROGRAM(fail_over_hosts) {
  const Millis limit(std::stoi(rank.arguments.at(2)));
  try {
    Group world = join(20s);
    std::vector<float> data(10'000, 1.0F);
    for (int step = 0; step < 200; ++step) {
      if (step == 100) rank.mark("middle");
      if (step == 100 && std::to_string(world.rank()) == rank.arguments.at(1)) {
        if (rank.arguments.at(0) == "kill") std::raise(SIGKILL);
        if (rank.arguments.at(0) == "stop") std::raise(SIGSTOP);
        if (rank.arguments.at(0) == "throw") throw DataError("row 17 is damaged");
      }
      if (step == 100 && rank.arguments.at(0) == "wait") std::this_thread::sleep_for(1s);
      world.all_reduce(span_of(std::span(data)), ReduceOp::mean, limit).wait(limit);
    }
  } catch (const std::exception& error) {
    std::printf("survivor: %s\n", error.what());
    std::fflush(stdout);
    report_failure(error);
    throw;
  }
}

class Hosts : public testing::Test {
 protected:
  void SetUp() override {
    if (const std::string why = TestHosts::why_not(); !why.empty()) GTEST_SKIP() << why;
  }
};

std::string logs_of(const std::vector<RankOutcome>& nodes) {
  std::string all;
  for (const RankOutcome& node : nodes) all += node.log + "\n--\n";
  return all;
}

TEST_F(Hosts, TwoOfTwoSumInTheOrderOfFourLocalRanks) {
  const TestHosts hosts(2);
  const auto nodes = run_nodes(hosts, 2, "sum_over_hosts", {});
  for (const RankOutcome& node : nodes) {
    EXPECT_EQ(node.exit_code, 0) << node.log;
    EXPECT_EQ(lines_after(node.log, "engine hier shape 2x2").size(), 2U) << node.log;
    EXPECT_EQ(lines_after(node.log, "sum is right").size(), 2U) << node.log;
    EXPECT_THAT(lines_after(node.log, "half of 4 has "), Each("2 by tcp"));
  }
}

TEST_F(Hosts, UnevenTreesOfThreeHosts) {
  const TestHosts hosts(3);
  for (const auto& node : run_nodes(hosts, 2, "sum_over_hosts", {})) {
    EXPECT_EQ(node.exit_code, 0) << node.log;
    EXPECT_EQ(lines_after(node.log, "engine hier shape 3x2").size(), 2U) << node.log;
    EXPECT_EQ(lines_after(node.log, "sum is right").size(), 2U) << node.log;
  }
}

TEST_F(Hosts, OneRankAHostUsesTcp) {
  const TestHosts hosts(3);
  for (const auto& node : run_nodes(hosts, 1, "sum_over_hosts", {})) {
    EXPECT_EQ(node.exit_code, 0) << node.log;
    EXPECT_EQ(lines_after(node.log, "engine tcp shape 3x1").size(), 1U) << node.log;
    EXPECT_EQ(lines_after(node.log, "sum is right").size(), 1U) << node.log;
  }
}

TEST_F(Hosts, KilledWorkerIsNamedOnEveryHost) {
  const TestHosts hosts(2);
  const auto nodes = run_nodes(hosts, 2, "fail_over_hosts", {"kill", "1", "20000"});
  EXPECT_EQ(nodes[0].exit_code, 128 + SIGKILL) << nodes[0].log;
  EXPECT_EQ(nodes[1].exit_code, 1) << nodes[1].log;
  const auto survivors = lines_after(logs_of(nodes), "survivor: ");
  EXPECT_EQ(survivors.size(), 3U) << logs_of(nodes);
  EXPECT_THAT(survivors, Each(HasSubstr("rank 1"))) << logs_of(nodes);
  for (const RankOutcome& node : nodes)
    EXPECT_THAT(node.log, HasSubstr("rank 1 was killed by SIGKILL")) << node.log;
}

TEST_F(Hosts, ErrorOfAWorkerIsTheRootCauseOnEveryHost) {
  const TestHosts hosts(2);
  const auto nodes = run_nodes(hosts, 1, "fail_over_hosts", {"throw", "1", "20000"});
  for (const RankOutcome& node : nodes) {
    EXPECT_EQ(node.exit_code, 1) << node.log;
    EXPECT_THAT(node.log, HasSubstr("row 17 is damaged")) << node.log;
  }
}

TEST_F(Hosts, StoppedWorkerIsNamedWhenALimitPasses) {
  const TestHosts hosts(2);
  const auto nodes = run_nodes(hosts, 1, "fail_over_hosts", {"stop", "1", "1000"});
  EXPECT_THAT(lines_after(nodes[0].log, "survivor: "), Each(HasSubstr("rank 1"))) << nodes[0].log;
  for (const RankOutcome& node : nodes) EXPECT_NE(node.exit_code, 0) << node.log;
}

TEST_F(Hosts, WrongTokenIsTurnedAway) {
  const TestHosts hosts(2);
  const auto nodes = run_nodes(hosts, 1, "sum_over_hosts", {}, {.wrong_token_on = "1"});
  EXPECT_THAT(nodes[1].error, HasSubstr("token")) << nodes[1].log;
  EXPECT_THAT(nodes[0].log, HasSubstr("refused a connection from 10.77.0.2")) << nodes[0].log;
  EXPECT_NE(nodes[0].exit_code, 0);
}

}  // namespace
}  // namespace tutti::test
