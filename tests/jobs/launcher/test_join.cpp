// join() and join_replicas() in workers of the launcher.
#include <csignal>

#include "tutti/cluster/join/join.h"

#include "tests/support/expect.h"
#include "tests/support/run_workers.h"

namespace tutti::test {
namespace {

TEST(Join, WorkersAddTheirRanks) {
  for (int workers : {1, 2, 3}) {
    const auto out = run_workers(workers, "join_and_add");
    EXPECT_EQ(out.exit_code, 0) << out.log;
    EXPECT_THAT(lines_after(out.log, "same group 1"), SizeIs(workers));
  }
}

TEST(Join, AWorkerThatNeverComesIsNamed) {
  const auto out = run_workers(3, "join_late");
  EXPECT_EQ(out.exit_code, 1);
  EXPECT_THAT(out.log, HasSubstr("after 300 ms rank 1 had not called join()"));
}

struct Loss {
  const char* program;
  std::vector<int> survivors;
};

class LossWhileJoining : public testing::TestWithParam<Loss> {};

TEST_P(LossWhileJoining, IsNamedByTheSurvivors) {
  const auto out = run_workers(3, GetParam().program);
  EXPECT_EQ(out.exit_code, 128 + SIGKILL) << out.log;
  for (const int survivor : GetParam().survivors) {
    const auto errors = lines_after(out.log, "[" + std::to_string(survivor) + "] error: join");
    ASSERT_THAT(errors, SizeIs(1)) << out.log;
    EXPECT_THAT(errors[0], HasSubstr("rank 1 was killed by SIGKILL"));
  }
}

INSTANTIATE_TEST_SUITE_P(Times, LossWhileJoining,
                         testing::Values(Loss{"die_waiting_for_others", {2}},
                                         Loss{"die_before_the_group", {0, 2}},
                                         Loss{"die_before_the_share", {2}},
                                         Loss{"die_before_the_replicas", {0, 2}}),
                         [](const auto& info) { return std::string(info.param.program); });

TEST(Join, TriedAgainAfterAnErrorReportsAnException) {
  const auto out = run_workers(2, "join_again");
  EXPECT_EQ(out.exit_code, 2) << out.log;
  EXPECT_THAT(out.log, HasSubstr("rank 0 exited with code 2: nobody catches this"));
}

TEST(JoinReplicas, ThreadsOfSeveralWorkersAreOneGroup) {
  const struct {
    int workers, replicas;
  } cases[] = {{1, 1}, {1, 3}, {2, 1}, {2, 2}, {3, 2}};
  for (const auto& c : cases) {
    const auto out = run_workers(
        c.workers, "join_in_threads",
        std::vector<std::string>(static_cast<size_t>(c.workers), std::to_string(c.replicas)));
    EXPECT_EQ(out.exit_code, 0) << out.log;
    const int n = c.workers * c.replicas;
    const int sum = n * (n - 1) / 2 + 100 * n * n;
    EXPECT_THAT(lines_after(out.log, "sum " + std::to_string(sum)), AllOf(SizeIs(2 * n), Each("")))
        << out.log;
  }
}

TEST(JoinReplicas, ALostWorkerIsNamedWithItsRanks) {
  const auto out = run_workers(3, "lose_replicas");
  EXPECT_EQ(out.exit_code, 128 + SIGKILL);
  EXPECT_THAT(out.log, HasSubstr("\nworker 1 (ranks 2 to 3) was killed by SIGKILL\n"));
  EXPECT_THAT(out.log, HasSubstr("worker 0 (ranks 0 to 1) exited with code 1"));
}

TEST(JoinReplicas, EveryWorkerGivesTheSameNumber) {
  const auto out = run_workers(2, "join_in_threads", {"2", "3"});
  EXPECT_EQ(out.exit_code, 1);
  for (int worker : {0, 1}) {
    EXPECT_THAT(out.log, HasSubstr("[" + std::to_string(worker) +
                                   "] error: join_replicas, worker " + std::to_string(worker) +
                                   " of 2: worker 0 asks for 2 replicas a worker, worker 1 for 3"));
  }
}

TEST(JoinReplicas, OutsideALauncher) {
  EXPECT_FALSE(worker_environment());
  EXPECT_EQ(join().size(), 1);
  const auto members = join_replicas(3);
  ASSERT_EQ(members.size(), 3U);
  EXPECT_EQ(members[2].rank(), 2);
  EXPECT_EQ(members[2].size(), 3);
  EXPECT_THROW(join_replicas(0), UsageError);
  report_failure(Error("nobody hears this"));
}

class Environment : public testing::Test {
 protected:
  void set(const char* name, const char* value) { setenv(name, value, 1); }
  ~Environment() override {
    for (const char* name : {"TUTTI_WORKER", "TUTTI_NUM_WORKERS", "TUTTI_JOB", "TUTTI_SEGMENT_FD",
                             "TUTTI_LIFELINE_FD"}) {
      unsetenv(name);
    }
  }
};

TEST_F(Environment, PartsOfItAreAnError) {
  set("TUTTI_WORKER", "0");
  EXPECT_THAT([] { worker_environment(); },
              ThrowsMessage<UsageError>(
                  AllOf(HasSubstr("TUTTI_WORKER set"), HasSubstr("TUTTI_NUM_WORKERS"))));
}

TEST_F(Environment, AJobAloneMarksAGrandchild) {
  set("TUTTI_JOB", "1234");
  EXPECT_FALSE(worker_environment());
}

TEST_F(Environment, ContradictionsNameBothValues) {
  set("TUTTI_WORKER", "2");
  set("TUTTI_NUM_WORKERS", "2");
  set("TUTTI_JOB", "1234");
  set("TUTTI_LIFELINE_FD", "0");
  EXPECT_THAT([] { worker_environment(); },
              ThrowsMessage<UsageError>(
                  AllOf(HasSubstr("TUTTI_WORKER=2"), HasSubstr("TUTTI_NUM_WORKERS=2"))));
  set("TUTTI_WORKER", "two");
  EXPECT_THAT([] { worker_environment(); }, ThrowsMessage<UsageError>(HasSubstr("\"two\"")));
  set("TUTTI_WORKER", "1");
  set("TUTTI_LIFELINE_FD", "987654");
  EXPECT_THAT([] { worker_environment(); },
              ThrowsMessage<UsageError>(HasSubstr("Bad file descriptor")));
}

}  // namespace
}  // namespace tutti::test
