// Programs with a coordinator as a user starts them, and what can happen to their processes.
#include <filesystem>

#include "tests/jobs/parameter_server/served_job.h"

namespace tutti::test {
namespace {

Words coordinated(const Words& more, int workers = 2) {
  return Words{TUTTI_PROGRAM,           "run",           "--servers", "1", "-n",
               std::to_string(workers), "--coordinator", "--silence", "2"} +
         more;
}
Words program(const std::string& name) { return {COORDINATOR_PROGRAM, name}; }

CommandResult run_to_end(const Words& words) { return run_command(words, {}, Millis{30'000}); }

TEST(Coordinator, HandsStepsToItsWorkers) {
  EXPECT_THAT(
      run_to_end(coordinated(program("squares"))),
      Exits(0, Out(AllOf(HasSubstr("[0] 60 squares of 60, 60 steps done, 0 repeated"),
                         HasSubstr("[1] worker 1 squares"), HasSubstr("[2] worker 2 squares")))));
}

TEST(Coordinator, GivesTheStepOfAKilledWorkerToAnother) {
  Job job(coordinated(program("two_hangs")));
  job.wait_for("worker 2 hangs");
  job.send("worker 2", SIGKILL);
  EXPECT_EQ(job.end(), 0) << last_part(job.log());
  EXPECT_THAT(
      job.log(),
      AllOf(HasSubstr("60 squares of 60, 60 steps done, 1 repeated, 1 workers lost"),
            ContainsRegex("worker 2 \\(host .*\\) .*; step \"hang on two\" is given to another"),
            HasSubstr("rank 2 was killed by SIGKILL")));
}

// It is silent, with its connection open; it is ended with the job.
TEST(Coordinator, GivesTheStepOfAStoppedWorkerToAnother) {
  Job job(coordinated(program("two_hangs")));
  job.wait_for("worker 2 hangs");
  job.send("worker 2", SIGSTOP);
  EXPECT_EQ(job.end(), 0) << last_part(job.log());
  EXPECT_THAT(job.log(), AllOf(HasSubstr("60 squares of 60, 60 steps done, 1 repeated"),
                               ContainsRegex("worker 2 \\(host .*\\) was silent for 2000 ms")));
}

// It has kept nothing: its place on the servers may be lost.
TEST(Coordinator, TakesAWorkerBackThatWasSilent) {
  Job job(coordinated(program("squares"), 1));
  job.wait_for("worker 1 squares", 3);
  job.send("worker 1", SIGSTOP);
  job.wait_for("was silent");
  job.send("worker 1", SIGCONT);
  EXPECT_EQ(job.end(), 0) << last_part(job.log());
  EXPECT_THAT(job.log(),
              ContainsRegex("60 squares of 60, 60 steps done, [01] repeated, 1 workers lost"));
  EXPECT_EQ(job.count(", its step 1\n"), 2);
}

TEST(Coordinator, GivesStepsToAWorkerThatIsStartedAgain) {
  Job job(coordinated(Words{"--restarts", "1"} + program("squares"), 1));
  job.wait_for("worker 1 squares", 3);
  job.send("worker 1", SIGKILL);
  EXPECT_EQ(job.end(), 0) << last_part(job.log());
  EXPECT_THAT(job.log(),
              ContainsRegex("60 squares of 60, 60 steps done, [01] repeated, 1 workers lost"));
  EXPECT_EQ(job.count(", its step 1\n"), 2);
}

TEST(Coordinator, NamesTheLastWorkerWhenNoneIsLeft) {
  Job job(coordinated(program("squares")));
  job.wait_for("worker 1 squares", 2);
  job.wait_for("worker 2 squares", 2);
  job.send("worker 1", SIGKILL);
  job.send("worker 2", SIGKILL);
  EXPECT_EQ(job.end(), 1) << last_part(job.log());
  EXPECT_THAT(job.log(), ContainsRegex("no worker is there, and .* steps wait; the last one: "
                                       "worker [12] \\(host "));
}

TEST(Coordinator, ThrowsTheErrorOfAStepWithItsNameAndGoesOn) {
  EXPECT_THAT(
      run_to_end(coordinated(program("errors"))),
      Exits(0, Out(AllOf(ContainsRegex("caught: step \"fail\" on worker [12] \\(host .*\\): "
                                       "sample 7 is damaged"),
                         HasSubstr("after it: 25")))));
}

TEST(Coordinator, EndsWithAnErrorThatNobodyCatches) {
  EXPECT_THAT(run_to_end(coordinated(program("uncaught"))),
              Exits(1, Err(AllOf(ContainsRegex(": step \"fail\" on worker [12] "),
                                 HasSubstr("sample 8 is damaged"),
                                 HasSubstr("rank 0 exited with code 1")))));
}

TEST(Coordinator, IsToldOfNamesThatWorkersDoNotKnow) {
  EXPECT_THAT(
      run_to_end(coordinated(program("late_name"))),
      Exits(2, Err(HasSubstr("\"late\" is named inside coordinate(), where workers never come"))));
  EXPECT_THAT(run_to_end(coordinated(program("unknown_name"))),
              Exits(1, Err(AllOf(HasSubstr("unknown step \"sqare\""), HasSubstr("square")))));
}

TEST(Coordinator, RefusesWorkersOfAnotherBuild) {
  const TempFolder folder;
  const std::string other = folder / "other";
  std::filesystem::copy_file(COORDINATOR_PROGRAM, other);
  std::ofstream(other, std::ios::app | std::ios::binary) << "another build";
  const std::string script = "if [ $TUTTI_WORKER = 0 ]; then exec " + program("")[0] +
                             " squares; else exec " + other + " squares; fi";
  EXPECT_THAT(
      run_to_end(coordinated({"sh", "-c", script})),
      Exits(1,
            Err(AllOf(ContainsRegex("\\[0\\] .*worker [12] \\(host .*\\) runs build [0-9a-f]+, the "
                                    "coordinator \\(host .*\\) build [0-9a-f]+"),
                      ContainsRegex("rank 1.*: worker 1 \\(host .*\\) runs build")))));
}

// Two are in a step without end; the launcher need not end them.
TEST(Coordinator, ThatIsKilledEndsTheJob) {
  Job job(coordinated(program("endless")));
  job.wait_for("in a step without end", 2);
  job.send("worker 0", SIGKILL);
  EXPECT_EQ(job.end(), 128 + SIGKILL) << last_part(job.log());
  EXPECT_THAT(job.log(), HasSubstr("rank 0 was killed by SIGKILL"));
}

TEST(Coordinator, ThatIsKilledEndsIdleWorkersByThemselves) {
  Job job(coordinated(program("squares"), 1));
  job.wait_for("worker 1 squares");
  job.send("worker 0", SIGKILL);
  EXPECT_EQ(job.end(), 128 + SIGKILL) << last_part(job.log());
  EXPECT_THAT(job.log(), ContainsRegex("\\[1\\] coordinator_program: the coordinator: "));
}

TEST(Coordinator, BadUseIsAnsweredBeforeWorkStarts) {
  EXPECT_THAT(run_to_end(program("squares")),
              Exits(2, Err(HasSubstr("tutti run --servers 1 -n 2 --coordinator"))));
  EXPECT_THAT(run_to_end({TUTTI_PROGRAM, "run", "--coordinator", "true"}),
              Exits(2, Err(HasSubstr("--coordinator without --servers"))));
  EXPECT_THAT(
      run_to_end(coordinated({"--on-lost-worker", "continue", COORDINATOR_PROGRAM, "squares"})),
      Exits(2, Err(HasSubstr("--on-lost-worker"))));
}

}  // namespace
}  // namespace tutti::test
