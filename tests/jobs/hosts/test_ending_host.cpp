// Jobs over several hosts: a whole host goes. Its wire is cut (nobody is told, no reset comes), or
// its launcher is killed or told to end. Everybody else ends in time with an error that names who
// is beyond, and nothing is left running.
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

// How long the processes of a host may take to go after the launchers have ended.
constexpr Millis kGone{10'000};

/// Sums without end; an operation may take arguments[0] ms.
RANK_PROGRAM(sum_until_failure) {
  const Millis limit(std::stoi(rank.arguments.at(0)));
  try {
    Group world = join(20s);
    std::vector<float> data(10'000, 1.0F);
    for (int64_t step = 0;; ++step) {
      if (step == 100) rank.mark("middle");
      world.all_reduce(span_of(std::span(data)), ReduceOp::mean, limit).wait(limit);
    }
  } catch (const std::exception& error) {
    std::printf("survivor %d: %s\n", rank.rank, error.what());
    std::fflush(stdout);
    report_failure(error);
    throw;
  }
}

/// The same; where it fails on the second host that host's launcher is told to end, too.
RANK_PROGRAM(sum_until_all_are_told) {
  Group world = join(20s);
  std::vector<float> data(10'000, 1.0F);
  try {
    for (int64_t step = 0;; ++step) {
      if (step == 100) rank.mark("middle");
      world.all_reduce(span_of(std::span(data)), ReduceOp::mean, 20s).wait(20s);
    }
  } catch (const std::exception&) {
    if (world.rank() >= 2) {
      kill(getppid(), SIGTERM);
      std::this_thread::sleep_for(20s);  // the launcher ends it
    }
    throw;
  }
}

/// Two hosts with two ranks each, the second of which is cut off in the middle.
std::vector<RankOutcome> cut_in_the_middle(const TestHosts& hosts, Millis operation,
                                           Millis silence) {
  return run_nodes(
      hosts, 2, "sum_until_failure", {std::to_string(operation.count())},
      {.kill = {.rank = 0, .after = "middle", .signal = 0, .then = [&] { hosts.cut(1); }},
       .silence = silence});
}

std::vector<std::string> survivors_of(const RankOutcome& node) {
  return lines_after(node.log, "] survivor ");
}

/// Names who is on host 1, as host 0 sees it.
testing::Matcher<std::string> beyond_0() {
  return AnyOf(HasSubstr("rank 2 ("), HasSubstr("rank 3 ("), HasSubstr("node 1 (ranks 2 to 3, "));
}

TEST_F(Hosts, CutWireEndsBothSidesAtTheLimitOfAnOperation) {
  const TestHosts hosts(2);
  const auto nodes = cut_in_the_middle(hosts, 2s, 40s);
  for (const RankOutcome& node : nodes) {
    EXPECT_FALSE(node.timed_out) << node.log;
    EXPECT_EQ(node.exit_code, 1) << node.log;
    EXPECT_THAT(survivors_of(node), SizeIs(2)) << node.log;
  }
  // Not one of its own host, which waited itself for those beyond.
  EXPECT_THAT(survivors_of(nodes[0]),
              Each(AllOf(HasSubstr("silent: rank 2 ("), HasSubstr("; rank 3 ("))));
  EXPECT_THAT(survivors_of(nodes[1]),
              Each(AllOf(HasSubstr("silent: rank 0 ("), HasSubstr("; rank 1 ("))));
  EXPECT_THAT(hosts.left_running(kGone), IsEmpty());
  if (HasFailure()) std::puts(logs_of(nodes).c_str());
}

TEST_F(Hosts, CutWireEndsBothSidesBySilence) {
  const TestHosts hosts(2);
  const auto nodes = cut_in_the_middle(hosts, 40s, 3s);
  for (const RankOutcome& node : nodes) {
    EXPECT_FALSE(node.timed_out) << node.log;
    EXPECT_EQ(node.exit_code, 1) << node.log;
    EXPECT_THAT(survivors_of(node), SizeIs(2)) << node.log;
    EXPECT_THAT(survivors_of(node), Each(HasSubstr("was silent for 3000 ms")));
  }
  EXPECT_THAT(survivors_of(nodes[0]), Each(beyond_0()));
  EXPECT_THAT(last_line(nodes[0]), AllOf(beyond_0(), Not(HasSubstr("exited with code"))));
  EXPECT_THAT(survivors_of(nodes[1]), Each(HasSubstr("beside rank 0")));
  EXPECT_THAT(last_line(nodes[1]), AllOf(HasSubstr("beside rank 0"), Not(HasSubstr("exited"))));
  EXPECT_THAT(hosts.left_running(kGone), IsEmpty());
  if (HasFailure()) std::puts(logs_of(nodes).c_str());
}

TEST_F(Hosts, KilledLauncherIsNamedAndLeavesNothingBehind) {
  const TestHosts hosts(2);
  const auto nodes =
      run_nodes(hosts, 2, "sum_until_failure", {"20000"}, {.kill = {.rank = 1, .after = "middle"}});
  EXPECT_EQ(nodes[1].signal, SIGKILL);
  EXPECT_FALSE(nodes[0].timed_out) << nodes[0].log;
  EXPECT_EQ(nodes[0].exit_code, 1) << nodes[0].log;
  EXPECT_THAT(survivors_of(nodes[0]), SizeIs(2)) << nodes[0].log;
  EXPECT_THAT(survivors_of(nodes[0]), Each(beyond_0()));
  EXPECT_THAT(last_line(nodes[0]), AllOf(beyond_0(), Not(HasSubstr("exited with code"))));
  EXPECT_THAT(hosts.left_running(kGone), IsEmpty());
  if (HasFailure()) std::puts(logs_of(nodes).c_str());
}

TEST_F(Hosts, KilledLauncherOfTheRendezvousEndsTheOthers) {
  const TestHosts hosts(2);
  const auto nodes =
      run_nodes(hosts, 2, "sum_until_failure", {"20000"}, {.kill = {.rank = 0, .after = "middle"}});
  EXPECT_EQ(nodes[0].signal, SIGKILL);
  EXPECT_FALSE(nodes[1].timed_out) << nodes[1].log;
  EXPECT_EQ(nodes[1].exit_code, 1) << nodes[1].log;
  EXPECT_THAT(survivors_of(nodes[1]), SizeIs(2)) << nodes[1].log;
  const auto beyond_1 = AnyOf(HasSubstr("rank 0 ("), HasSubstr("rank 1 ("));
  EXPECT_THAT(survivors_of(nodes[1]), Each(beyond_1));
  EXPECT_THAT(last_line(nodes[1]), AllOf(beyond_1, Not(HasSubstr("exited with code"))));
  EXPECT_THAT(hosts.left_running(kGone), IsEmpty());
  if (HasFailure()) std::puts(logs_of(nodes).c_str());
}

TEST_F(Hosts, TerminatedLauncherEndsTheJobOnEveryHost) {
  const TestHosts hosts(2);
  const auto nodes = run_nodes(hosts, 2, "sum_until_failure", {"20000"},
                               {.kill = {.rank = 1, .after = "middle", .signal = SIGTERM}});
  EXPECT_EQ(nodes[1].exit_code, 128 + SIGTERM) << nodes[1].log;
  EXPECT_THAT(last_line(nodes[1]), HasSubstr("ended by SIGTERM"));
  EXPECT_FALSE(nodes[0].timed_out) << nodes[0].log;
  EXPECT_EQ(nodes[0].exit_code, 1) << nodes[0].log;
  EXPECT_THAT(survivors_of(nodes[0]), SizeIs(2)) << nodes[0].log;
  EXPECT_THAT(last_line(nodes[0]), HasSubstr("was told to end by SIGTERM"));
  EXPECT_THAT(hosts.left_running(kGone), IsEmpty());
  if (HasFailure()) std::puts(logs_of(nodes).c_str());
}

// As a scheduler ends a job: the second node hears of the first one's signal before its own comes.
TEST_F(Hosts, AllToldToEndSayThatTheyWere) {
  const TestHosts hosts(2);
  const auto nodes = run_nodes(hosts, 2, "sum_until_all_are_told", {},
                               {.kill = {.rank = 0, .after = "middle", .signal = SIGTERM}});
  for (const RankOutcome& node : nodes) {
    EXPECT_EQ(node.exit_code, 128 + SIGTERM) << node.log;
    EXPECT_THAT(last_line(node), HasSubstr("ended by SIGTERM"));
  }
  EXPECT_THAT(hosts.left_running(kGone), IsEmpty());
}

}  // namespace
}  // namespace tutti::test
