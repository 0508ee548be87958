// Jobs over several hosts: what is summed, and by which engine.
#include <cstdio>

#include "tutti/cluster/join/join.h"

#include "tests/jobs/hosts/hosts_test.h"
#include "tests/support/expect.h"

namespace tutti::test {
namespace {

using namespace std::chrono_literals;

RANK_PROGRAM(sum_over_hosts) {
  Group world = join(20s);
  std::printf("engine %s shape %s\n", std::string(world.engine().name()).c_str(),
              world.reduction_shape().to_string().c_str());
  std::printf("%s\n", sum_is_right(world, 100'003) ? "sum is right" : "sum is WRONG");
  auto half = world.split(world.rank() % 2);
  int64_t ranks = 1;
  half->all_reduce_now({&ranks, 1, DType::int64}, ReduceOp::sum);
  std::printf("half of %d has %ld by %s\n", world.size(), static_cast<long>(ranks),
              std::string(half->engine().name()).c_str());
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

}  // namespace
}  // namespace tutti::test
