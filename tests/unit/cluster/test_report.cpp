// Which failure was the first, and the words for it.
#include <csignal>

#include "tutti/cluster/launch/detail/report.h"

#include "tests/support/expect.h"

namespace tutti {
namespace {

using detail::Death;
using detail::root_of;

TEST(RootOf, IsTheFirstThatDidNotMerelyLoseAPeer) {
  const struct {
    const char* why;
    std::vector<Death> deaths;
    std::optional<int> root;
  } cases[] = {
      {"nobody failed", {{0, false}, {1, false}}, std::nullopt},
      {"the first in time", {{2, true}, {0, true}}, 2},
      {"a normal end before it does not count", {{0, false}, {1, true}}, 1},
      {"the survivor's error came first", {{0, true, true}, {1, true}}, 1},
      {"all lost a peer", {{1, true, true}, {0, true, true}}, 1},
  };
  for (const auto& c : cases) EXPECT_EQ(root_of(c.deaths), c.root) << c.why;
}

TEST(WorkerResult, FollowsWhereItsOwnErrorSaysSo) {
  for (const char* one : {"PeerLost", "FailedElsewhere"})
    EXPECT_TRUE((WorkerResult{.error_class = one}).follows()) << one;
  for (const char* one : {"", "error", "Timeout", "UsageError"})
    EXPECT_FALSE((WorkerResult{.error_class = one}).follows()) << one;
}

TEST(WorkerResult, IsNamedByItsRanks) {
  EXPECT_EQ((WorkerResult{.worker = 1}).name(), "rank 1");
  EXPECT_EQ((WorkerResult{.worker = 1, .replicas = 3}).name(), "worker 1 (ranks 3 to 5)");
}

TEST(WorkerResult, WordsForItsEnd) {
  EXPECT_EQ((WorkerResult{.signal = SIGKILL}).ending(), "was killed by SIGKILL");
  EXPECT_EQ((WorkerResult{.signal = SIGRTMIN + 3}).ending(),
            "was killed by signal " + std::to_string(SIGRTMIN + 3));
  EXPECT_EQ((WorkerResult{.exit_code = 3}).ending(), "exited with code 3");
  EXPECT_EQ((WorkerResult{.exit_code = 1, .error = "bad file\n  details"}).ending(),
            "exited with code 1: bad file");
  EXPECT_FALSE((WorkerResult{.exit_code = 0}).failed());
  EXPECT_TRUE((WorkerResult{.exit_code = 0, .signal = SIGTERM}).failed());
}

LaunchResult three_workers() {
  LaunchResult result;
  result.workers = {
      {.worker = 0, .exit_code = 1, .error = "rank 1 left", .error_class = "PeerLost"},
      {.worker = 1, .signal = SIGKILL, .last_lines = {"step 1", "step 2"}},
      {.worker = 2, .signal = SIGTERM, .stopped_by_launcher = true}};
  return result;
}

TEST(FailureReport, FoldsTheRestAndNamesTheCauseLast) {
  LaunchResult result = three_workers();
  result.root_worker = 1;
  result.root_cause = "rank 1 was killed by SIGKILL";
  const std::string text = failure_report(result);
  EXPECT_THAT(text, HasSubstr("after the first failure: rank 0 exited with code 1, "
                              "rank 2 was killed by SIGTERM (ended by tutti)\n"));
  EXPECT_THAT(text, HasSubstr("last lines of rank 1:\n  step 1\n  step 2\n"));
  EXPECT_THAT(text, HasSubstr("often the kernel's answer to memory"));
  EXPECT_THAT(text, EndsWith("\nrank 1 was killed by SIGKILL"));
}

TEST(FailureReport, TellsEachErrorOnceAndThatOfTheCauseWhole) {
  LaunchResult result{.root_cause = "rank 2 exited with code 2: bad file", .root_worker = 2};
  const auto failed = [](int worker, const std::string& error_class, const std::string& error) {
    return WorkerResult{
        .worker = worker, .exit_code = 1, .error = error, .error_class = error_class};
  };
  result.workers = {failed(0, "PeerLost", "rank 2 went away"),
                    failed(1, "DataError", "bad file\n  at byte 3"),
                    failed(2, "DataError", "bad file\n  at byte 3"),
                    failed(3, "error", "no room"),
                    failed(4, "error", "no room"),
                    failed(5, "FailedElsewhere", "its own message says why"),
                    failed(6, "", "")};
  EXPECT_EQ(failure_report(result),
            "after the first failure: rank 0 exited with code 1, rank 1 exited with code 1, rank 3 "
            "exited with code 1, rank 4 exited with code 1, rank 5 exited with code 1, rank 6 "
            "exited with code 1\n"
            "rank 3: no room\n"
            "rank 2 exited with code 2: bad file\n  at byte 3");
}

TEST(FailureReport, OfWhatWasToldAlreadyHasALine) {
  LaunchResult result{.root_cause = "rank 1 exited with code 1: bad file", .root_worker = 1};
  const WorkerResult failed{.worker = 0, .exit_code = 1, .error = "no room\n  try", .told = true};
  result.workers = {failed, failed};
  result.workers[1].worker = 1;
  result.workers[1].error = "bad file\n  at byte 3";
  EXPECT_EQ(failure_report(result),
            "after the first failure: rank 0 exited with code 1\n"
            "rank 1 exited with code 1: bad file");
}

TEST(FailureReport, SaysWhereFlightRecordsAre) {
  LaunchResult result = three_workers();
  result.root_cause = "ended by SIGINT";
  result.flight_records = "/tmp/tutti-1a";
  EXPECT_THAT(failure_report(result),
              EndsWith("what each rank did last is in /tmp/tutti-1a: `tutti doctor record "
                       "/tmp/tutti-1a/*.json`\nended by SIGINT"));
}

TEST(FailureReport, SaysThatMemoryRanOutWhereTheKernelDoes) {
  LaunchResult result = three_workers();
  result.root_worker = 1;
  result.root_cause = "rank 1 was killed by SIGKILL";
  result.oom_kills = 1;
  EXPECT_THAT(failure_report(result),
              HasSubstr("memory ran out: the kernel killed 1 of this cgroup's processes\n"));
}

TEST(FailureReport, ShowsWhatWorkersAndOtherNodesSaidAsItCanBePrinted) {
  LaunchResult result = three_workers();
  result.root_worker = 1;
  result.root_cause = "rank 1 exited with code 1: \x1b[2Jfile\ntutti run: all is well";
  result.workers[1].last_lines = {"\x1b[31mred", std::string(1 << 20, 'x')};
  const std::string text = failure_report(result);
  EXPECT_THAT(text, HasSubstr("\n  \\x1b[31mred\n"));
  EXPECT_THAT(text, EndsWith("rank 1 exited with code 1: \\x1b[2Jfile\n  tutti run: all is well"));
  EXPECT_THAT(text, Not(HasSubstr("\x1b")));
  EXPECT_LT(text.size(), 4096U);
}

TEST(FailureReport, AfterASignalNoWorkerIsBlamed) {
  LaunchResult result = three_workers();
  result.root_cause = "ended by SIGINT";
  const std::string text = failure_report(result);
  EXPECT_THAT(text, Not(HasSubstr("last lines")));
  EXPECT_THAT(text, EndsWith("ended by SIGINT"));
}

TEST(FailureReport, IsEmptyAfterSuccess) { EXPECT_EQ(failure_report({}), ""); }

}  // namespace
}  // namespace tutti
