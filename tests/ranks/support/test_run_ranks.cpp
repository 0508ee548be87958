// run_ranks itself: what it reports of ranks that end in every possible way.
#include <fcntl.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include "tests/support/expect.h"
#include "tests/support/run_ranks.h"

namespace tutti::test {
namespace {

using namespace std::chrono_literals;

RANK_PROGRAM(end_in_many_ways) {
  rank.mark("rank " + std::to_string(rank.rank) + " of " + std::to_string(rank.size));
  if (rank.rank == 1) std::exit(3);
  if (rank.rank == 2) throw PeerLost("rank 7 went away\n  second line");
  if (rank.rank == 3) std::raise(SIGTERM);
}

RANK_PROGRAM(wait_for_ever) {
  rank.mark("waiting");
  while (true) pause();
}

RANK_PROGRAM(echo) {
  const std::string text = rank.arguments.at(0) + " " + std::getenv("TUTTI_TEST_EXTRA");
  if (write(rank.descriptors.at(0), text.data(), text.size()) < 0) throw Error("write");
}

TEST(RunRanks, ReportsEveryKindOfEnd) {
  const auto out = run_ranks(4, "end_in_many_ways");
  EXPECT_EQ(out[0].exit_code, 0);
  EXPECT_THAT(out[0].log, HasSubstr("rank 0 of 4"));
  EXPECT_EQ(out[1].exit_code, 3);
  EXPECT_EQ(out[2].exit_code, 1);
  EXPECT_EQ(out[2].error_class, "PeerLost");
  EXPECT_EQ(out[2].error, "rank 7 went away\n  second line");
  EXPECT_EQ(out[3].exit_code, -1);
  EXPECT_EQ(out[3].signal, SIGTERM);
  for (const auto& rank : out) EXPECT_FALSE(rank.timed_out);
}

TEST(RunRanks, KillsAfterTheMark) {
  const auto out = run_ranks(1, "wait_for_ever", {.kill = {.rank = 0, .after = "waiting"}});
  EXPECT_EQ(out[0].signal, SIGKILL);
  EXPECT_GE(out[0].seconds_after_kill, 0);
  EXPECT_FALSE(out[0].timed_out);
}

TEST(RunRanks, AStoppedRankIsKilledWhenTheOthersHaveEnded) {
  const auto out =
      run_ranks(1, "wait_for_ever", {.kill = {.rank = 0, .after = "waiting", .signal = SIGSTOP}});
  EXPECT_EQ(out[0].signal, SIGKILL);
  EXPECT_FALSE(out[0].timed_out);
}

TEST(RunRanks, KillsAllAtTheLimit) {
  const auto out = run_ranks(2, "wait_for_ever", {.limit = 300ms});
  for (const auto& rank : out) {
    EXPECT_TRUE(rank.timed_out);
    EXPECT_EQ(rank.signal, SIGKILL);
    EXPECT_EQ(kill(rank.pid, 0), -1);
  }
}

TEST(RunRanks, HandsOnDescriptorsArgumentsAndEnvironment) {
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
  const auto out = run_ranks(1, "echo",
                             {.descriptors = {ends[1]},
                              .arguments = {"with spaces"},
                              .environment = {"TUTTI_TEST_EXTRA=and more"}});
  EXPECT_EQ(out[0].exit_code, 0) << out[0].log;
  char bytes[64] = {};
  EXPECT_EQ(read(ends[0], bytes, sizeof bytes), 20);
  EXPECT_STREQ(bytes, "with spaces and more");
  close(ends[0]);
  close(ends[1]);
}

TEST(RunRanks, AnUnknownProgramIsAnError) {
  const auto out = run_ranks(1, "no_such_program");
  EXPECT_EQ(out[0].exit_code, 2);
  EXPECT_THAT(out[0].log, HasSubstr("no_such_program"));
}

}  // namespace
}  // namespace tutti::test
