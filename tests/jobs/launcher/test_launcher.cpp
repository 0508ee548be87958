// The launcher as a whole: output, failures of every kind at every time, signals, and what is left.
#include <sys/stat.h>

#include <csignal>
#include <cstdlib>
#include <fstream>
#include <optional>
#include <regex>
#include <thread>

#include "tutti/base/host.h"
#include "tutti/cluster/launch/launcher.h"

#include "tests/support/expect.h"
#include "tests/support/free_port.h"
#include "tests/support/run_workers.h"
#include "tests/support/temp_folder.h"

namespace tutti::test {
namespace {

using namespace std::chrono_literals;

/// The numbers behind `words` in a log.
std::vector<int> numbers_after(const std::string& log, const std::string& words) {
  std::vector<int> numbers;
  const std::regex pattern(words + "([0-9]+)");
  for (std::sregex_iterator at(log.begin(), log.end(), pattern), end; at != end; ++at) {
    numbers.push_back(std::stoi((*at)[1]));
  }
  return numbers;
}

bool is_gone(int pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string text;
  std::getline(file, text);
  const size_t name_end = text.rfind(')');
  return name_end == std::string::npos || text.substr(name_end, 3) == ") Z";
}

/// Waits for processes that are being ended by somebody else.
bool are_gone_soon(const std::vector<int>& pids) {
  for (const Deadline deadline(10s); !deadline.passed(); std::this_thread::sleep_for(5ms)) {
    if (std::all_of(pids.begin(), pids.end(), is_gone)) return true;
  }
  return false;
}

int count_of(const std::string& log, const std::string& words) {
  int count = 0;
  for (size_t at = 0; (at = log.find(words, at)) != std::string::npos; ++at) ++count;
  return count;
}

/// The system's temporary folder of what is started meanwhile; flight records go there by
/// themselves.
class OnlyTemporaryFolder {
 public:
  explicit OnlyTemporaryFolder(const std::string& path) {
    setenv("TMPDIR", path.c_str(), 1);
    unsetenv("TUTTI_RECORD_DIR");
  }
  ~OnlyTemporaryFolder() {
    records_ ? setenv("TUTTI_RECORD_DIR", records_->c_str(), 1) : unsetenv("TUTTI_RECORD_DIR");
    tmp_ ? setenv("TMPDIR", tmp_->c_str(), 1) : unsetenv("TMPDIR");
  }

 private:
  static std::optional<std::string> value_of(const char* name) {
    const char* value = std::getenv(name);
    return value == nullptr ? std::nullopt : std::optional<std::string>(value);
  }
  const std::optional<std::string> tmp_ = value_of("TMPDIR");
  const std::optional<std::string> records_ = value_of("TUTTI_RECORD_DIR");
};

std::string last_line_with(const std::string& log, const std::string& words) {
  const size_t at = log.rfind(words);
  if (at == std::string::npos) return "";
  const size_t begin = log.rfind('\n', at) + 1;
  return log.substr(begin, log.find('\n', at) - begin);
}

TEST(Launcher, ForwardsLinesBehindTheWorkersNumber) {
  const auto out = run_workers(2, "say_lines");
  EXPECT_EQ(out.exit_code, 0);
  const auto pids = numbers_after(out.log, "worker [01] pid ");
  EXPECT_EQ(pids.size(), 2U) << out.log;
  for (const char* line : {"[0] out 0\n", "[1] out 1\n", "[0] err 0\n", "[1] err 1\n", "[0] \n",
                           "[0] last without end\n", "[1] last without end\n"}) {
    EXPECT_THAT(out.log, HasSubstr(line));
  }
  EXPECT_THAT(out.log, Not(HasSubstr("LEFT")));
}

TEST(Launcher, LinesOfWorkersNeverMix) {
  const auto out = run_workers(3, "shout");
  EXPECT_EQ(out.exit_code, 0);
  for (int w = 0; w < 3; ++w) {
    const std::string line =
        "[" + std::to_string(w) + "] " + std::string(300, static_cast<char>('a' + w)) + "\n";
    EXPECT_EQ(count_of(out.log, line), 200) << "worker " << w;
  }
}

struct Failure {
  const char* way;
  const char* when;
  int exit_code;
  const char* cause;
};

class LauncherFailure : public testing::TestWithParam<Failure> {};

TEST_P(LauncherFailure, IsNamedLastAndNothingIsLeft) {
  const Failure& failure = GetParam();
  const auto out = run_workers(3, "fail_in_training", {failure.way, failure.when});
  EXPECT_FALSE(out.timed_out);
  EXPECT_EQ(out.exit_code, failure.exit_code) << out.log;
  EXPECT_THAT(last_line_with(out.log, "rank 1 "), HasSubstr(failure.cause)) << out.log;
  EXPECT_THAT(out.log, HasSubstr("root worker 1")) << out.log;
  EXPECT_THAT(out.log, Not(HasSubstr("LEFT")));
  for (const char* survivor : {"[0] error: ", "[2] error: "}) {
    const std::string line = last_line_with(out.log, survivor);
    EXPECT_THAT(line, HasSubstr("rank 1")) << out.log;
  }
  for (int pid : numbers_after(out.log, "worker [012] pid ")) EXPECT_TRUE(is_gone(pid)) << pid;
}

INSTANTIATE_TEST_SUITE_P(
    Matrix, LauncherFailure,
    testing::Values(Failure{"kill", "start", 137, "rank 1 was killed by SIGKILL"},
                    Failure{"kill", "middle", 137, "rank 1 was killed by SIGKILL"},
                    Failure{"kill", "end", 137, "rank 1 was killed by SIGKILL"},
                    Failure{"exit", "start", 3, "rank 1 exited with code 3"},
                    Failure{"exit", "middle", 3, "rank 1 exited with code 3"},
                    Failure{"exit", "end", 3, "rank 1 exited with code 3"},
                    Failure{"throw", "start", 1, "rank 1 exited with code 1: row 17 is damaged"},
                    Failure{"throw", "middle", 1, "rank 1 exited with code 1: row 17 is damaged"},
                    Failure{"throw", "end", 1, "rank 1 exited with code 1: row 17 is damaged"},
                    Failure{"give_up", "middle", 1, "rank 1 exited with code 1: row 17 is damaged"},
                    Failure{"abort", "middle", 134, "rank 1 was killed by SIGABRT"},
                    Failure{"stop", "start", 1, "rank 1 was stopped (SIGSTOP)"},
                    Failure{"stop", "middle", 1, "rank 1 was stopped (SIGSTOP)"},
                    Failure{"stop", "end", 1, "rank 1 was stopped (SIGSTOP)"}),
    [](const auto& info) { return std::string(info.param.way) + "_" + info.param.when; });

TEST(Launcher, AnExceptionThatNobodyCatchesIsTold) {
  const auto out = run_workers(2, "throw_uncaught");
  EXPECT_EQ(out.exit_code, 2) << out.log;
  EXPECT_THAT(last_line_with(out.log, "rank 1 "),
              HasSubstr("rank 1 exited with code 2: nobody catches this"));
  EXPECT_EQ(count_of(out.log, "nobody catches this"), 1) << out.log;
}

TEST(Launcher, AnErrorOfAllIsToldOnceAndWhole) {
  const auto out = run_workers(3, "throw_everywhere");
  EXPECT_EQ(out.exit_code, 2) << out.log;
  EXPECT_EQ(count_of(out.log, "wrong\n  in this way\n"), 1) << out.log;
  EXPECT_EQ(count_of(out.log, "wrong"), 1) << out.log;
}

TEST(Launcher, TellsWhereFlightRecordsAreUnlessTheInputWasWrong) {
  const TempFolder folder;
  const OnlyTemporaryFolder only(folder.path());
  const auto wrong = run_workers(3, "leave_a_group", {"throw"});
  EXPECT_EQ(wrong.exit_code, 2) << wrong.log;
  EXPECT_THAT(wrong.log, AllOf(HasSubstr("\nrank 1 exited with code 2: row 17 is damaged\n"),
                               Not(HasSubstr("did last"))));
  EXPECT_TRUE(folder.names().empty());

  const auto killed = run_workers(3, "leave_a_group", {"kill"});
  EXPECT_EQ(killed.exit_code, 137) << killed.log;
  const auto names = folder.names();
  ASSERT_EQ(names.size(), 1U) << testing::PrintToString(names);
  const std::string records = (folder / *names.begin()).string();
  EXPECT_EQ(count_of(killed.log, "did last"), 1) << killed.log;
  EXPECT_THAT(killed.log, HasSubstr("what each rank did last is in " + records +
                                    ": `tutti doctor record " + records + "/*.json`\n"));
}

TEST(Launcher, NeedsNoTemporaryFolder) {
  const TempFolder folder;
  const OnlyTemporaryFolder only(folder / "nowhere");
  const auto good = run_workers(2, "join_and_add");
  EXPECT_EQ(good.exit_code, 0) << good.log;
  const auto failed = run_workers(2, "leave_a_group", {"exit"});
  EXPECT_EQ(failed.exit_code, 3) << failed.log;
  EXPECT_THAT(failed.log, HasSubstr("\nrank 1 exited with code 3\n"));
  const auto records = lines_after(failed.log, "what each rank did last is in ");
  ASSERT_EQ(records.size(), 1U) << failed.log;
  EXPECT_THAT(records[0], StartsWith("/tmp/tutti-"));
  std::filesystem::remove_all(records[0].substr(0, records[0].find(':')));
  const auto lives = run_ranks(1, "launch_lives", {.arguments = {"3", "0"}}).at(0);
  EXPECT_EQ(lives.exit_code, 0) << lives.log;
}

TEST(Uncaught, ErrorsEndAProcessAsTheCommandLineDoes) {
  const std::pair<const char*, int> cases[] = {
      {"usage", 2}, {"data", 2}, {"error", 1}, {"standard", 1}, {"interrupted", 128 + SIGTERM}};
  for (const auto& [what, code] : cases) {
    const auto out = run_ranks(1, "throw_after_words", {.arguments = {what}}).at(0);
    EXPECT_EQ(out.exit_code, code) << out.log;
    EXPECT_EQ(out.log, "words without enderror: nobody catches this\n") << what;
  }
  const auto number = run_ranks(1, "throw_after_words", {.arguments = {"number"}}).at(0);
  EXPECT_EQ(number.signal, SIGABRT);
  EXPECT_THAT(number.log, AllOf(HasSubstr("words without end"), HasSubstr("'int'")));
}

TEST(Uncaught, OnAnyThreadOnce) {
  const auto out = run_ranks(1, "throw_in_two_threads").at(0);
  EXPECT_EQ(out.exit_code, 2) << out.log;
  EXPECT_EQ(out.log, "error: nobody catches this\n");
}

TEST(Uncaught, BesideAThreadThatIsStuckInAWrite) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "the sanitizer's _exit() waits for who writes";
#endif
  const auto out = run_ranks(1, "throw_beside_a_stuck_write").at(0);
  EXPECT_EQ(out.exit_code, 2) << out.log;
  EXPECT_EQ(out.log, "error: nobody catches this\n");
}

TEST(Uncaught, AHandlerOfTheProgramsOwnComesFirst) {
  const auto alone = run_ranks(1, "throw_with_a_handler_of_its_own").at(0);
  EXPECT_EQ(alone.exit_code, 7);
  EXPECT_EQ(alone.log, "mine\n");
  const auto launched = run_workers(1, "throw_with_a_handler_of_its_own");
  EXPECT_THAT(launched.log, HasSubstr("rank 0 exited with code 7: nobody catches this"));
}

TEST(Restarts, AJobLivesAgainAsAWhole) {
  const auto out = run_ranks(1, "launch_lives", {.arguments = {"3", "5", "0"}}).at(0);
  EXPECT_EQ(out.exit_code, 0) << out.log;
  EXPECT_THAT(
      out.log,
      AllOf(HasSubstr("rank 1 was killed by SIGKILL\n"
                      "that was in step 3; the whole job is started again (1 of 3) in 1 s\n"),
            HasSubstr("that was in step 5; the whole job is started again (2 of 3) in 1 s\n"),
            HasSubstr("[0] ends in life 2 of "), HasSubstr("[1] ends in life 2 of ")));
  EXPECT_EQ(numbers_after(out.log, "worker [01] pid ").size(), 6U) << out.log;
}

TEST(Restarts, EndWithAStepThatFailsTwice) {
  const auto out = run_ranks(1, "launch_lives", {.arguments = {"4", "4", "0"}}).at(0);
  EXPECT_EQ(out.exit_code, 128 + SIGKILL) << out.log;
  EXPECT_THAT(out.log,
              AllOf(HasSubstr("step 4; the whole job is started again (1 of 3)"),
                    HasSubstr("step 4 has failed for the second time: the job is not started "
                              "again\n"),
                    Not(HasSubstr("(2 of 3)"))));
}

// Worker 1 is of node 1: node 0 learns of its steps from there.
TEST(Restarts, NodesLiveAgainTogether) {
  const auto nodes = run_ranks(2, "launch_lives_of_a_node",
                               {.arguments = {std::to_string(free_port()), "3", "5", "0"}});
  for (const RankOutcome& node : nodes) {
    EXPECT_EQ(node.exit_code, 0) << node.log;
    EXPECT_THAT(
        node.log,
        AllOf(HasSubstr("that was in step 3; the whole job is started again (1 of 3) in 1 s\n"),
              HasSubstr("that was in step 5; the whole job is started again (2 of 3) in 1 s\n")));
  }
  const auto id = lines_after(nodes[0].log, "] ends in life 2 of ");
  ASSERT_EQ(id.size(), 1U) << nodes[0].log;
  EXPECT_EQ(lines_after(nodes[1].log, "] ends in life 2 of "), id) << nodes[1].log;
}

TEST(Restarts, NodesEndTogetherWithAStepThatFailsTwice) {
  const auto nodes = run_ranks(2, "launch_lives_of_a_node",
                               {.arguments = {std::to_string(free_port()), "4", "4", "0"}});
  EXPECT_EQ(nodes[0].exit_code, 1) << nodes[0].log;
  EXPECT_EQ(nodes[1].exit_code, 128 + SIGKILL) << nodes[1].log;
  for (const RankOutcome& node : nodes)
    EXPECT_THAT(node.log, HasSubstr("step 4 has failed for the second time: the job is not started "
                                    "again\n"));
}

TEST(Restarts, NobodyWaitsForANodeThatIsGone) {
  const auto nodes = run_ranks(2, "launch_lives_of_a_node",
                               {.kill = {.rank = 1, .after = "worker 1 pid"},
                                .arguments = {std::to_string(free_port()), "3", "5", "0"}});
  EXPECT_FALSE(nodes[0].timed_out) << nodes[0].log;
  EXPECT_EQ(nodes[0].exit_code, 1) << nodes[0].log;
  EXPECT_THAT(nodes[0].log, HasSubstr("the job is not started again: "));
}

// It does not wait for the other one to read what that will not read any more. The limit is far
// below that of the wait, 20 s.
TEST(Restarts, ANodeThatIsToldToEndIsNotWaitedFor) {
  const auto nodes = run_ranks(2, "launch_lives_of_a_node",
                               {.kill = {.rank = 1, .after = "[0] waits", .signal = SIGTERM},
                                .limit = 15s,
                                .arguments = {std::to_string(free_port()), "wait"}});
  EXPECT_FALSE(nodes[0].timed_out) << nodes[0].log;
  EXPECT_NE(nodes[0].exit_code, 0);
  EXPECT_EQ(nodes[1].exit_code, 128 + SIGTERM) << nodes[1].log;
  EXPECT_THAT(nodes[0].log, Not(HasSubstr("started again")));
}

TEST(Nodes, OfWhichOneCountsMoreHearBothNumbers) {
  for (const RankOutcome& node : run_ranks(2, "launch_one_of_another_number_of_nodes",
                                           {.arguments = {std::to_string(free_port())}})) {
    EXPECT_EQ(node.error_class, "UsageError") << node.log;
    EXPECT_THAT(node.error, AllOf(HasSubstr("node 0 (rank 0, "), HasSubstr("one of 2"),
                                  HasSubstr("node 1 (rank 1, "), HasSubstr("one of 3"),
                                  HasSubstr("give every node the same --nodes")));
  }
}

// Limits, and the beats of launchers and workers, are shorter than the pause.
TEST(Pauses, OfAWholeJobEndNothing) {
  const auto out = run_workers(2, "go_on_after_a_pause", {"shm"});
  EXPECT_EQ(out.exit_code, 0) << out.log;
  for (const auto& node : run_ranks(2, "launch_a_node_with_a_pause",
                                    {.arguments = {std::to_string(free_port()), "tcp"}})) {
    EXPECT_EQ(node.exit_code, 0) << node.log;
    EXPECT_THAT(node.log, HasSubstr("goes on"));
  }
}

TEST(Launcher, KillsWhatIgnoresSigterm) {
  const auto out = run_workers(2, "never_end");
  EXPECT_EQ(out.exit_code, 3) << out.log;
  EXPECT_THAT(out.log, HasSubstr("rank 0 was killed by SIGKILL (ended by tutti)"));
  EXPECT_THAT(last_line_with(out.log, "rank 1 "), HasSubstr("rank 1 exited with code 3"));
}

TEST(Launcher, LetsTheRestGoOnWhenToldSo) {
  const auto out = run_workers(3, "fail_alone", {}, {}, false);
  EXPECT_EQ(out.exit_code, 3);
  EXPECT_THAT(out.log, AllOf(HasSubstr("[0] goes on"), HasSubstr("[2] goes on")));
  EXPECT_THAT(out.log, Not(HasSubstr("ended by tutti")));
}

// No limit of the others passes: they have ended.
TEST(Launcher, DoesNotWaitForOneThatIsStoppedWhenTheRestHaveEnded) {
  const auto out = run_ranks(1, "launch_one_that_stops").at(0);
  EXPECT_FALSE(out.timed_out) << out.log;
  EXPECT_EQ(out.exit_code, 128 + SIGKILL) << out.log;
  EXPECT_THAT(out.log, AllOf(HasSubstr("[0] ends"),
                             HasSubstr("rank 1 is stopped (SIGSTOP), and no "
                                       "other worker is left: it is ended"),
                             HasSubstr("rank 1 was stopped (SIGSTOP) and did not go on"),
                             HasSubstr("root worker 1")));
}

// Others hear of the loss after that.
TEST(Launcher, TellsAnErrorAtOnceWhereTheRestGoOn) {
  const auto out = run_workers(2, "throw_alone", {}, {}, false);
  EXPECT_EQ(out.exit_code, 1) << out.log;
  const size_t told =
      out.log.find("rank 1 exited with code 1: my own reason; the others go on\n  try this\n");
  ASSERT_NE(told, std::string::npos) << out.log;
  EXPECT_LT(told, out.log.find("[0] goes on")) << out.log;
  EXPECT_THAT(out.log, HasSubstr("\nrank 1 exited with code 1: my own reason\n"));
  EXPECT_EQ(count_of(out.log, "try this"), 1) << out.log;
}

TEST(Launcher, TellsTheWholeErrorOfAWorkerThatItStartsAgainAlone) {
  const auto out = run_ranks(1, "launch_alone_again").at(0);
  EXPECT_EQ(out.exit_code, 1) << out.log;
  EXPECT_THAT(out.log, AllOf(HasSubstr("my own reason; it is started again (1 of 1)\n  try this\n"),
                             HasSubstr("\nrank 0 exited with code 1: my own reason\n  try this\n"),
                             Not(HasSubstr("go on"))));
}

TEST(Launcher, ASignalEndsTheJobInOrder) {
  for (const int signal : {SIGINT, SIGTERM}) {
    const auto out =
        run_workers(2, "end_in_order", {}, {.rank = 0, .after = "[1] ready", .signal = signal});
    EXPECT_EQ(out.exit_code, 128 + signal) << out.log;
    EXPECT_THAT(out.log, AllOf(HasSubstr("[0] ends in order"), HasSubstr("[1] ends in order")));
    EXPECT_THAT(out.log, Not(HasSubstr("LEFT")));
  }
}

TEST(Launcher, ASecondSignalEndsAtOnce) {
  const auto out = run_workers(1, "answer_signal_with_signal", {},
                               {.rank = 0, .after = "[0] ready", .signal = SIGINT});
  EXPECT_EQ(out.exit_code, 128 + SIGINT) << out.log;
  EXPECT_THAT(out.log, HasSubstr("ended by SIGINT"));
}

TEST(Launcher, AFailureBeforeASignalIsStillTheCause) {
  const auto out = run_workers(2, "interrupt_after_a_failure");
  EXPECT_EQ(out.exit_code, 3) << out.log;
  EXPECT_THAT(out.log, AllOf(HasSubstr("\nrank 1 exited with code 3\n"), HasSubstr("root worker 1"),
                             HasSubstr("rank 0 was killed by SIGINT (ended by tutti)")));
}

TEST(Launcher, EndsGrandchildrenToo) {
  const auto out = run_workers(2, "leave_grandchildren");
  EXPECT_EQ(out.exit_code, 0) << out.log;
  const auto grandchildren = numbers_after(out.log, "grandchild pid ");
  EXPECT_EQ(grandchildren.size(), 4U) << out.log;
  for (int pid : grandchildren) EXPECT_TRUE(is_gone(pid)) << pid;
  EXPECT_THAT(out.log, Not(HasSubstr("LEFT")));
}

TEST(Launcher, ReapsOrphansWhileTheJobGoesOn) {
  const auto out = run_workers(2, "leave_orphans");
  EXPECT_EQ(out.exit_code, 0) << out.log;
  EXPECT_EQ(count_of(out.log, "all are gone"), 2) << out.log;
}

TEST(Launcher, KilledItselfLeavesNobody) {
  // Two workers with two grandchildren each; the fourth line may come from either.
  const auto out = run_workers(1, "leave_grandchildren", {"stay"},
                               {.rank = 0, .after = "grandchild pid ", .signal = SIGKILL});
  EXPECT_EQ(out.signal, SIGKILL);
  auto pids = numbers_after(out.log, "pid ");
  EXPECT_GE(pids.size(), 2U) << out.log;
  EXPECT_TRUE(are_gone_soon(pids)) << out.log;
}

TEST(Launcher, RefusesProgramsThatCannotBeStarted) {
  const auto launching = [](const std::string& program) {
    return [program] { launch({.command = {program}, .announce = false}); };
  };
  EXPECT_THAT(launching("./no/such/program"),
              ThrowsMessage<UsageError>(HasSubstr("No such file or directory")));
  EXPECT_THAT(launching("no-such-program-in-path"), ThrowsMessage<UsageError>(HasSubstr("PATH")));
  EXPECT_THAT(launching("/etc/passwd"), ThrowsMessage<UsageError>(HasSubstr("not executable")));
  EXPECT_THAT(launching("/usr"), ThrowsMessage<UsageError>(HasSubstr("a folder")));
  EXPECT_THAT(launching(""), ThrowsMessage<UsageError>(HasSubstr("empty")));
  EXPECT_THAT(launching("/bin/slep"), ThrowsMessage<UsageError>(HasSubstr("/bin/sleep")));

  const std::string file = testing::TempDir() + "tutti_not_a_program";
  const char* const contents_and_answers[][2] = {
      {"neither a script nor a binary\n", "Exec format error"},
      {"#!/bin/sh\r\nexit 0\r\n", "ends in CR LF"},
      {"#! /usr/bin/env python3\r\nprint(1)\r\n", "sed -i 's/\\r$//' "},
      {"#!/no/such/python3 -u\n", "/no/such/python3, its interpreter"}};
  for (const auto& [content, answer] : contents_and_answers) {
    std::ofstream(file) << content;
    ASSERT_EQ(chmod(file.c_str(), 0755), 0);
    EXPECT_THAT(launching(file), ThrowsMessage<UsageError>(HasSubstr(answer))) << content;
    unlink(file.c_str());
  }

  EXPECT_THROW(launch({.num_workers = 0, .command = {"/bin/true"}}), UsageError);
  EXPECT_THROW(launch({.num_workers = 1025, .command = {"/bin/true"}}), UsageError);
  EXPECT_THROW(launch({.num_workers = 1}), UsageError);
}

TEST(Launcher, RunsProgramsThatKnowNothingOfTutti) {
  testing::internal::CaptureStdout();
  const auto result = launch({.num_workers = 2,
                              .command = {"sh", "-c", "read line || echo $WHO $TUTTI_WORKER"},
                              .environment = {"WHO=worker"},
                              .announce = false,
                              .prefix_output = false});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(result.root_cause, "");
  EXPECT_EQ(failure_report(result), "");
  EXPECT_THAT(testing::internal::GetCapturedStdout(),
              AllOf(HasSubstr("worker 0\n"), HasSubstr("worker 1\n")));
}

TEST(Launcher, GivesEachWorkerAShareOfTheCores) {
  const int share = std::max(1, host_facts().usable_cores / 2);
  const auto threads = [](int workers, const std::vector<std::string>& environment) {
    testing::internal::CaptureStdout();
    const auto result = launch({.num_workers = workers,
                                .command = {"sh", "-c", "echo ${OMP_NUM_THREADS-none}"},
                                .environment = environment,
                                .announce = false,
                                .prefix_output = false});
    EXPECT_EQ(result.exit_code, 0);
    return testing::internal::GetCapturedStdout();
  };
  unsetenv("OMP_NUM_THREADS");
  EXPECT_EQ(threads(2, {}), fmt::format("{0}\n{0}\n", share));
  EXPECT_EQ(threads(2, {"OMP_NUM_THREADS=7"}), "7\n7\n");
  EXPECT_EQ(threads(1, {}), "none\n");
}

}  // namespace
}  // namespace tutti::test
