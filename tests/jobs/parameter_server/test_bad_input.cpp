// What a user can type wrongly about parameter servers, and what is answered before any training.
#include "tests/jobs/parameter_server/served_job.h"

namespace tutti::test {
namespace {

TEST(ServedTraining, WithoutServersSaysWhatToType) {
  EXPECT_THAT(run_command(Words{TUTTI_PROGRAM, "run", "-n", "2"} + train_served({})),
              Exits(2, Err(AllOf(HasSubstr("without servers"),
                                 HasSubstr("tutti run --servers 1 -n 2 PROGRAM ARGS...")))));
}

TEST(ServedTraining, OptionsThatContradictEachOtherEndTheJobAtOnce) {
  EXPECT_THAT(run_command(Words{TUTTI_PROGRAM, "run", "--servers", "1", "-n", "2"} +
                          train_served({"--staleness", "0", "--scale-by-staleness"})),
              Exits(2, Err(HasSubstr("--scale-by-staleness: gradients of synchronous steps "
                                     "(--staleness 0) are never stale"))));
}

TEST(ServedTraining, DropsNobodyInAJobWithSnapshots) {
  const TempFolder folder;
  EXPECT_THAT(
      run_command(Words{TUTTI_PROGRAM, "run", "--servers", "1", "-n", "2", "--snapshots",
                        folder.path().string()} +
                  train_served({"--drop-slowest", "1"})),
      Exits(2, Err(HasSubstr("--snapshots " + folder.path().string() +
                             ": with --drop-slowest 1 each server leaves other late steps"))));
}

TEST(ServedTraining, CannotHaveOtherServersThanTheLauncher) {
  EXPECT_THAT(run_command(Words{TUTTI_PROGRAM, "run", "--servers", "1", "-n", "2"} +
                          train_served({"--servers", "2"})),
              Exits(2, Err(HasSubstr("--servers 2: the launcher of this job said 1"))));
}

TEST(ServedTraining, WhatTheLauncherIsToldIsRefusedBehindIt) {
  for (const Words& words : std::vector<Words>{{"--restore", "not/there"},
                                               {"--snapshots", "s"},
                                               {"--no-backups"},
                                               {"--on-lost-worker", "wait", "--restarts", "1"}}) {
    EXPECT_THAT(
        run_command(Words{TUTTI_PROGRAM, "run", "--servers", "1", "-n", "2"} + train_served(words)),
        Exits(2, Err(AllOf(HasSubstr("this job's servers are its launcher's; say it there: "
                                     "tutti run --servers 1 " +
                                     (words.size() > 2 ? "--restarts" : words[0])),
                           Not(HasSubstr("epoch"))))))
        << words[0];
  }
}

TEST(ServedTraining, NamesAViewServiceThatIsNotThereAndTheTimeTried) {
  EXPECT_THAT(
      run_command(Words{TUTTI_PROGRAM, "run", "-n", "1"} + train_served({"--time-limit", "1"}),
                  {kToken, "TUTTI_VIEW_SERVICE=127.0.0.1:1", "TUTTI_NUM_SERVERS=1"}),
      Exits(1, Err(AllOf(HasSubstr("127.0.0.1:1"), HasSubstr("1000 ms"),
                         HasSubstr("nothing listens there now")))));
}

TEST(ServedTraining, RefusesATimeToPollThatIsNone) {
  for (const std::string poll : {"-1", "2ms", "1000001"}) {
    EXPECT_THAT(
        run_command(Words{TUTTI_PROGRAM, "run", "-n", "1"} + train_served({}),
                    {kToken, "TUTTI_VIEW_SERVICE=127.0.0.1:1", "TUTTI_NUM_SERVERS=1",
                     "TUTTI_POLL_US=" + poll}),
        Exits(2, Err(HasSubstr("TUTTI_POLL_US=" + poll + ": expected microseconds, 0 to"))));
  }
}

TEST(ServedTraining, RefusesPiecesOfNoBytes) {
  for (const std::string bytes : {"0", "1M", "1073741825"}) {
    EXPECT_THAT(run_command(Words{TUTTI_PROGRAM, "run", "-n", "1"} + train_served({}),
                            {kToken, "TUTTI_VIEW_SERVICE=127.0.0.1:1", "TUTTI_NUM_SERVERS=1",
                             "TUTTI_PIECE_BYTES=" + bytes}),
                Exits(2, Err(HasSubstr("TUTTI_PIECE_BYTES=" + bytes + ": expected bytes, 1 to"))));
  }
}

TEST(RunCommand, AsksForWhatServersNeed) {
  struct Case {
    Words words;
    const char* answer;
  };
  for (const Case& c : std::vector<Case>{
           {{"--servers-elsewhere", "1"}, "without --view-service"},
           {{"--view-service", "127.0.0.1"}, "--view-service 127.0.0.1 without servers"},
           {{"--servers", "1", "--view-service", "0.0.0.0"}, "0.0.0.0"},
           {{"--servers", "1", "--view-service", "nowhere:"}, "--view-service"},
           {{"--no-backups"}, "--no-backups without servers"}}) {
    EXPECT_THAT(
        run_command(Words{TUTTI_PROGRAM, "run", "-n", "1"} + c.words + Words{"true"}, {kToken}),
        Exits(2, Err(HasSubstr(c.answer))))
        << c.answer;
  }
  EXPECT_THAT(tutti({"run", "--servers-elsewhere", "1", "--view-service", "127.0.0.1", "true"},
                    {"TUTTI_TOKEN=", "TUTTI_TOKEN_FILE="}),
              Exits(2, Err(HasSubstr("export TUTTI_TOKEN="))));
}

// Each worker runs a line of its own: $W is its number.
CommandResult run_workers_that_differ(const std::string& line) {
  return tutti({"run", "--servers", "1", "-n", "2", "sh", "-c",
                "W=$TUTTI_WORKER; exec " + std::string(TUTTI_PROGRAM) + " train " + line +
                    " --data " + kDoodles + " --strategy parameter_server --max-steps 5"});
}

TEST(ServedTraining, RefusesAWorkerWithAnotherModel) {
  const auto result = run_workers_that_differ(
      "$([ $W = 0 ] && echo mlp || echo wide) --staleness inf --time-limit 10");
  EXPECT_EQ(result.exit_code, 1) << result.out << result.err;
  EXPECT_THAT(result.err,
              ContainsRegex("worker [01] .*does not train what worker [01] .*does: variable 0"));
  EXPECT_THAT(result.err, AllOf(HasSubstr("[2048, 784]"), HasSubstr("[128, 784]")));
}

TEST(ServedTraining, RefusesAWorkerThatWasAskedForSomethingElse) {
  const std::string optimizer = "--optimizer $([ $W = 0 ] && echo sgd || echo adam)";
  const std::string seed = "--seed $([ $W = 0 ] && echo 7 || echo 8)";
  const struct {
    std::string flags;
    const char* says;
  } cases[] = {
      // In step by each other, else by the servers: as they register, and as they ask for a batch.
      {"--staleness 0 " + optimizer, "worker 1 was asked for something else than worker 0"},
      {"--staleness inf " + optimizer,
       "worker [01] .*does not train what worker [01] .*does: the optimizer"},
      {"--staleness inf " + seed, "this worker was asked for something else than those before it"},
  };
  for (const auto& c : cases) {
    const auto result = run_workers_that_differ("mlp --time-limit 10 " + c.flags);
    EXPECT_EQ(result.exit_code, 1) << result.out << result.err;
    EXPECT_THAT(result.err, ContainsRegex(c.says)) << c.flags;
  }
}

TEST(PsCommand, AsksForWhatItNeeds) {
  EXPECT_THAT(tutti({"ps", "--view-service", "127.0.0.1:1"}, {"TUTTI_TOKEN=", "TUTTI_TOKEN_FILE="}),
              Exits(2, Err(AllOf(HasSubstr("no token"), HasSubstr("TUTTI_TOKEN")))));
  EXPECT_THAT(tutti({"ps"}, {kToken}), Exits(2, Err(HasSubstr("--view-service"))));
  for (const char* wrong : {"nowhere", "127.0.0.1:0", "127.0.0.1:99999", ":17", ""}) {
    EXPECT_THAT(tutti({"ps", "--view-service", wrong, "--time-limit", "0.3"}, {kToken}),
                Exits(2, Err(AllOf(HasSubstr("--view-service"), HasSubstr(wrong)))))
        << wrong;
  }
}

TEST(PsCommand, NamesADeadAddressAndTheTimeTried) {
  EXPECT_THAT(
      tutti({"ps", "--view-service", "127.0.0.1:1", "--time-limit", "0.4"}, {kToken}),
      Exits(1, Err(AllOf(HasSubstr("127.0.0.1:1"), HasSubstr("400 ms"), HasSubstr("refused")))));
}

}  // namespace
}  // namespace tutti::test
