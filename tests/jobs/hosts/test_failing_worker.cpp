// Jobs over several hosts: a worker fails; every other one and every launcher names it.
#include <sys/socket.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <thread>

#include "tutti/cluster/join/join.h"

#include "tests/jobs/hosts/hosts_test.h"
#include "tests/support/expect.h"

namespace tutti::test {
namespace {

using namespace std::chrono_literals;

/// Of this process, to other hosts.
void end_connections() {
  for (int descriptor = 3; descriptor < 1'024; ++descriptor) {
    int domain = 0;
    socklen_t bytes = sizeof domain;
    if (getsockopt(descriptor, SOL_SOCKET, SO_DOMAIN, &domain, &bytes) == 0 && domain == AF_INET)
      shutdown(descriptor, SHUT_RDWR);
  }
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
        if (rank.arguments.at(0) == "late") pause();
        if (rank.arguments.at(0) == "disagree") data.resize(9'999);
        if (rank.arguments.at(0).ends_with("late")) {
          end_connections();
          std::this_thread::sleep_for(300ms);  // the others have ended
          if (rank.arguments.at(0) == "kill late") std::raise(SIGKILL);
          throw DataError("row 17 is damaged");
        }
        if (rank.arguments.at(0) == "throw") throw DataError("row 17 is damaged");
      }
      world.all_reduce(span_of(std::span(data)), ReduceOp::mean, limit).wait(limit);
    }
  } catch (const std::exception& error) {
    std::printf("survivor: %s\n", error.what());
    std::fflush(stdout);
    report_failure(error);
    throw;
  }
}

// "late": its host hears of those that lost it before it sees it end.
TEST_F(Hosts, KilledWorkerIsNamedOnEveryHost) {
  const TestHosts hosts(2);
  for (const char* way : {"kill", "kill late"}) {
    SCOPED_TRACE(way);
    const auto nodes = run_nodes(hosts, 2, "fail_over_hosts", {way, "1", "20000"});
    EXPECT_EQ(nodes[0].exit_code, 128 + SIGKILL) << nodes[0].log;
    EXPECT_EQ(nodes[1].exit_code, 1) << nodes[1].log;
    const auto survivors = lines_after(logs_of(nodes), "] survivor: ");
    EXPECT_EQ(survivors.size(), 3U) << logs_of(nodes);
    if (std::string(way) == "kill") {  // "late" ends its connection to the rendezvous, too
      EXPECT_THAT(survivors, Each(HasSubstr("rank 1"))) << logs_of(nodes);
    }
    for (const RankOutcome& node : nodes)
      EXPECT_THAT(node.log, HasSubstr("rank 1 was killed by SIGKILL")) << node.log;
  }
}

TEST_F(Hosts, ErrorOfAWorkerIsTheRootCauseOnEveryHost) {
  const TestHosts hosts(2);
  for (const char* way : {"throw", "throw late"})
    for (const RankOutcome& node : run_nodes(hosts, 1, "fail_over_hosts", {way, "1", "20000"})) {
      EXPECT_EQ(node.exit_code, 1) << node.log;
      EXPECT_THAT(node.log, HasSubstr("row 17 is damaged")) << node.log;
    }
}

TEST_F(Hosts, StoppedWorkerIsNamedWhenALimitPasses) {
  const TestHosts hosts(2);
  const auto nodes = run_nodes(hosts, 1, "fail_over_hosts", {"stop", "1", "1000"});
  EXPECT_THAT(lines_after(nodes[0].log, "] survivor: "), Each(HasSubstr("rank 1"))) << nodes[0].log;
  for (const RankOutcome& node : nodes) EXPECT_NE(node.exit_code, 0) << node.log;
}

TEST_F(Hosts, StoppedWorkerIsTheCauseOnItsHost) {
  const TestHosts hosts(2);
  const auto nodes = run_nodes(hosts, 2, "fail_over_hosts", {"stop", "1", "1000"});
  EXPECT_THAT(last_line(nodes[0]), HasSubstr("rank 1 was stopped (SIGSTOP)")) << nodes[0].log;
  for (const RankOutcome& node : nodes) {
    EXPECT_FALSE(node.timed_out) << node.log;
    EXPECT_EQ(node.exit_code, 1) << node.log;
  }
}

TEST_F(Hosts, LateWorkerIsNamedWhenALimitPasses) {
  const TestHosts hosts(2);
  const auto nodes = run_nodes(hosts, 2, "fail_over_hosts", {"late", "1", "1000"});
  const auto survivors = lines_after(logs_of(nodes), "] survivor: ");
  EXPECT_EQ(survivors.size(), 3U) << logs_of(nodes);
  EXPECT_THAT(survivors, Each(HasSubstr("silent: rank 1 ("))) << logs_of(nodes);
  for (const RankOutcome& node : nodes) {
    EXPECT_FALSE(node.timed_out) << node.log;
    EXPECT_EQ(node.exit_code, 1) << node.log;
  }
}

TEST_F(Hosts, DisagreementIsToldOnEveryHost) {
  const TestHosts hosts(2);
  const auto nodes = run_nodes(hosts, 2, "fail_over_hosts", {"disagree", "1", "20000"});
  const auto survivors = lines_after(logs_of(nodes), "] survivor: ");
  EXPECT_EQ(survivors.size(), 4U) << logs_of(nodes);
  EXPECT_THAT(survivors, Each(AllOf(HasSubstr("rank 1"), HasSubstr("10000 float32"),
                                    HasSubstr("9999 float32"))))
      << logs_of(nodes);
  for (const RankOutcome& node : nodes) EXPECT_EQ(node.exit_code, 1) << node.log;
}

}  // namespace
}  // namespace tutti::test
