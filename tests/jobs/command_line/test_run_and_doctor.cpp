// The program `tutti` itself: run, doctor, and its answers to what is wrong.
#include "tutti/base/host.h"

#include "tests/jobs/program.h"

namespace tutti::test {
namespace {

// All that are wrong: tests/unit/wrong_words.
TEST(CommandLine, WrongWordsEndTheProgramWith2) {
  const struct {
    Words words;
    const char* answer;
  } cases[] = {
      {{"rnu", "-n", "2", "true"}, "tutti: unknown command \"rnu\"; did you mean \"run\"?"},
      {{"run", "-n", "0", "true"}, "tutti run: "},
      {{"train", "mlp", "--data", "not/there"}, "tutti train: "},
      {{"bench", "step", "--model", "mpl", "--data", kDoodles}, "tutti bench: "},
      {{"plan", "nlp", "--gflops", "1"}, "tutti plan: "},
      {{}, "tutti: "},
  };
  for (const auto& c : cases) {
    EXPECT_THAT(tutti(c.words), Exits(2, Err(StartsWith(c.answer)), Out(""))) << c.answer;
  }
}

TEST(CommandLine, HelpShowsExamples) {
  for (const Words& words : {Words{"--help"}, {"run", "--help"}, {"doctor", "--help"}}) {
    EXPECT_THAT(tutti(words),
                Exits(0, Out(AllOf(HasSubstr("Examples:"), HasSubstr("tutti "))), Err("")));
  }
}

TEST(Run, TheProgramsOwnFlagsAreItsOwn) {
  const auto result = tutti({"run", "-n", "2", "echo", "-n", "--grace", "x", "--help"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  for (const char* line :
       {"worker 0 pid ", "worker 1 pid ", "[0] --grace x --help\n", "[1] --grace x --help\n"}) {
    EXPECT_THAT(result.out, HasSubstr(line));
  }
  EXPECT_EQ(result.err, "");
}

TEST(Run, TwoDashesMayStandBeforeTheProgram) {
  const auto plain = [](const Words& words) {
    const auto result = tutti(Words{"run"} + words);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return result.out.substr(std::min(result.out.find('['), result.out.size()));
  };
  EXPECT_EQ(plain({"--", "echo", "-n", "--", "x"}), "[0] -- x\n");
  EXPECT_EQ(plain({"-n", "1", "--grace=3", "--", "echo", "x"}), "[0] x\n");
  EXPECT_EQ(plain({"-n1", "--no-backups", "--servers", "1", "--", "echo", "x"}), "[0] x\n");
  EXPECT_EQ(plain({"echo", "-n", "1", "--", "--grace"}), "[0] 1 -- --grace\n");
}

TEST(Run, AReaderThatHasSeenEnoughEndsNobody) {
  EXPECT_THAT(
      run_command({"sh", "-c", "\"$0\" run sh -c 'seq 100000; echo still here >&2' | head -1",
                   TUTTI_PROGRAM}),
      Exits(0, Err(HasSubstr("[0] still here\n"))));
}

TEST(Run, OneWorkerUnlessTold) {
  EXPECT_THAT(tutti({"run", "sh", "-c", "echo of $TUTTI_NUM_WORKERS; echo e >&2"}),
              Exits(0, Out(EndsWith("[0] of 1\n")), Err("[0] e\n")));
}

TEST(Run, TheFirstFailureIsNamedLastAndGivesTheExitCode) {
  EXPECT_THAT(tutti({"run", "-n", "2", "sh", "-c", "echo why >&2; exit $TUTTI_WORKER"}),
              Exits(1, Err(AllOf(HasSubstr("  why\n"),
                                 EndsWith("tutti run: rank 1 exited with code 1\n")))));

  EXPECT_THAT(tutti({"run", "sh", "-c", "kill -9 $$"}),
              Exits(137, Err(EndsWith("tutti run: rank 0 was killed by SIGKILL\n"))));
}

TEST(Run, AJobThatFailedIsStartedAgainAsAWhole) {
  const auto lives = [](const char* restarts) {
    return tutti({"run", "-n", "2", "--restarts", restarts, "sh", "-c",
                  "echo life ${TUTTI_RESTART:-0}; "
                  "test $TUTTI_WORKER = 0 || test ${TUTTI_RESTART:-0} = 2"});
  };
  const auto ended = lives("3");
  EXPECT_EQ(ended.exit_code, 0) << ended.err;
  EXPECT_THAT(ended.out, AllOf(HasSubstr("[0] life 2\n"), HasSubstr("[1] life 2\n"),
                               Not(HasSubstr("life 3"))));
  EXPECT_THAT(ended.err,
              AllOf(HasSubstr("tutti run: rank 1 exited with code 1\n"
                              "tutti run: the whole job is started again (1 of 3) in 1 s\n"),
                    HasSubstr("tutti run: the whole job is started again (2 of 3) in 2 s\n")));
  const auto failed = lives("1");
  EXPECT_EQ(failed.exit_code, 1) << failed.err;
  EXPECT_THAT(failed.err, EndsWith("tutti run: rank 1 exited with code 1\n"
                                   "tutti run: none of its 1 restarts is left\n"));
}

// Worker 1 counts its lives in a file, and fails until it has had as many as it needs.
CommandResult lives(const TempFolder& folder, int restarts, int needed) {
  return tutti({"run", "-n", "2", "--restarts", std::to_string(restarts), "--on-lost-worker",
                "continue", "sh", "-c",
                "test $TUTTI_WORKER = 0 && exit 0; echo x >> \"$0\"; "
                "echo life $(wc -l < \"$0\"); test $(wc -l < \"$0\") -ge $1",
                folder / "lives", std::to_string(needed)});
}

TEST(Run, FailedWorkersAreStartedAgainWhileOthersGoOn) {
  const TempFolder folder;
  const auto result = lives(folder, 3, 3);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, AllOf(HasSubstr("[1] life 1\n"), HasSubstr("[1] life 2\n"),
                                HasSubstr("[1] life 3\n"), Not(HasSubstr("life 4"))));
  EXPECT_THAT(result.err,
              AllOf(HasSubstr("rank 1 exited with code 1; it is started again (1 of 3)"),
                    HasSubstr("(2 of 3)"), Not(HasSubstr("(3 of 3)"))));
}

TEST(Run, AWorkerThatFailsTooOftenIsTheFailure) {
  const TempFolder folder;
  const auto result = lives(folder, 2, 9);
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.out, AllOf(HasSubstr("[1] life 3\n"), Not(HasSubstr("life 4"))));
  EXPECT_THAT(result.err, EndsWith("tutti run: rank 1 exited with code 1\n"));
}

// What the first life left behind would hold its output, and so the launcher, for a minute.
TEST(Run, WhatAFailedWorkerHadStartedEndsBeforeItsNextLife) {
  const TempFolder folder;
  const auto result =
      tutti({"run", "--restarts", "1", "--on-lost-worker", "continue", "sh", "-c",
             "if test -e \"$0\"; then kill -0 $(cat \"$0\") 2>&1 && exit 3; exit 0; fi; "
             "sleep 60 & echo $! > \"$0\"; exit 3",
             folder / "child"});
  EXPECT_EQ(result.exit_code, 0) << result.out << result.err;
}

TEST(Doctor, SaysWhatThisMachineHas) {
  const auto result = tutti({"doctor"});
  EXPECT_EQ(result.exit_code, 0) << result.out;
  for (const char* word : {"cores", "memory", "/dev/shm", "shm", "LibTorch", "OpenMP", "BLAS",
                           "ABI", "CUDA", "NCCL", "devices"}) {
    EXPECT_THAT(result.out, HasSubstr(word));
  }
  EXPECT_THAT(result.out, Not(HasSubstr("BLAS unknown")));
}

TEST(Doctor, JsonHasTheSameFacts) {
  const auto result = tutti({"doctor", "--json"});
  EXPECT_EQ(result.exit_code, 0);
  const json said = json::parse(result.out);
  const HostFacts facts = read_host_facts();
  EXPECT_EQ(said.at("cores_usable").get<int>(), facts.usable_cores);
  EXPECT_EQ(said.at("memory_total_bytes").get<int64_t>(), facts.memory_total_bytes);
  EXPECT_EQ(said.at("engines").get<Words>(), (Words{"solo", "shm"}));
  EXPECT_EQ(said.at("torch").at("abi"), "C++11");
  EXPECT_TRUE(said.at("problems").is_array());
  // Without a GPU a cure, and with one none.
  EXPECT_EQ(said.at("cuda").at("devices").empty(), said.at("cuda").at("cure") != "");
}

TEST(Doctor, SaysWhoIsInTheJob) {
  const auto under = [](const char* variables) {
    return run_command(
        {"sh", "-c", std::string("env ") + variables + " \"$0\" doctor", TUTTI_PROGRAM});
  };
  const auto worker = under("RANK=1 WORLD_SIZE=2 MASTER_ADDR=node1 MASTER_PORT=4000");
  EXPECT_EQ(worker.exit_code, 0) << worker.err;
  EXPECT_THAT(worker.out, AllOf(HasSubstr("The job: worker 1 of 2, as RANK and WORLD_SIZE says"),
                                HasSubstr("rendezvous  node1:4000")));
  const auto wrong = under("RANK=2 WORLD_SIZE=2");
  EXPECT_EQ(wrong.exit_code, 1);
  EXPECT_THAT(wrong.out, HasSubstr("RANK=2 contradicts WORLD_SIZE=2"));
}

/// A record of one group of two ranks whose last call is `operation`, not done.
std::string flight_record_of(int rank, const char* operation) {
  const json call = {{"number", 1},         {"operation", operation}, {"file", "a.cpp"},
                     {"line", 3 + rank},    {"function", "main"},     {"dtype", "float32"},
                     {"elements", 10},      {"reduction", "sum"},     {"root", 0},
                     {"state", "submitted"}};
  const json group = {{"name", "workers"}, {"engine", "shm"}, {"rank", rank},
                      {"size", 2},         {"failure", ""},   {"operations", {call}}};
  return json{{"tutti_flight_record", 1}, {"job", "j"},  {"worker", rank},
              {"num_workers", 2},         {"host", "h"}, {"pid", 7},
              {"groups", {group}}}
      .dump();
}

TEST(Doctor, SaysWhoDivergedFromFlightRecords) {
  const TempFolder folder;
  put_bytes(folder / "0.json", flight_record_of(0, "all_reduce"));
  put_bytes(folder / "1.json", flight_record_of(1, "broadcast"));
  EXPECT_THAT(
      tutti({"doctor", "record", (folder / "0.json").string(), (folder / "1.json").string()}),
      Exits(0, Out(AllOf(StartsWith("2 files of job j\n"),
                         HasSubstr("rank 0 called all_reduce (sum) of 10 float32 at a.cpp:3"),
                         HasSubstr("rank 1 called broadcast of 10 float32 from rank 0 at "
                                   "a.cpp:4"),
                         Not(HasSubstr("cores"))))));
  const auto one = tutti({"doctor", "record", (folder / "0.json").string()});
  EXPECT_THAT(one.out, HasSubstr("no record of rank 1"));

  put_bytes(folder / "bad.json", flight_record_of(0, "all_redcue"));
  EXPECT_THAT(
      tutti({"doctor", "record", (folder / "bad.json").string()}),
      Exits(2, Err(AllOf(HasSubstr("bad.json"), HasSubstr("groups[0].operations[0].operation")))));
  EXPECT_EQ(tutti({"doctor", "record", (folder / "none.json").string()}).exit_code, 2);
  EXPECT_EQ(tutti({"doctor", "record"}).exit_code, 2);
}

}  // namespace
}  // namespace tutti::test
