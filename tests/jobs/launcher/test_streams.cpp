// The launcher's own stdout: flooded, not read, without a reader, closed.
#include <fcntl.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <thread>

#include "tutti/cluster/join/join.h"
#include "tutti/cluster/launch/launcher.h"

#include "tests/support/expect.h"
#include "tests/support/run_workers.h"

namespace tutti::test {
namespace {

using namespace std::chrono_literals;

void require(bool done, const char* what) {
  if (!done) throw Error(std::string(what) + ": " + errno_words(errno));
}

/// Puts `what` in the place of stdout, and returns the end to read from where there is one.
int replace_stdout(const std::string& what) {
  if (what == "closed") {
    close(STDIN_FILENO);
    close(STDOUT_FILENO);
    return -1;
  }
  if (what == "null") {
    require(dup2(open("/dev/null", O_WRONLY | O_CLOEXEC), STDOUT_FILENO) >= 0, "dup2");
    return -1;
  }
  int ends[2];
  require(pipe2(ends, O_CLOEXEC) == 0, "pipe");
  require(dup2(ends[1], STDOUT_FILENO) >= 0, "dup2");
  close(ends[1]);
  if (what == "unread" || what == "read late") return ends[0];
  close(ends[0]);  // "broken"
  return -1;
}

/// Reads once the pipe is full; prints how much came in all.
void read_late(int from) {
  int there = 0;
  while (there < 60'000) {
    require(ioctl(from, FIONREAD, &there) == 0, "FIONREAD");
    std::this_thread::sleep_for(1ms);
  }
  size_t total = 0;
  char bytes[4096];
  for (ssize_t got = 0; (got = read(from, bytes, sizeof bytes)) > 0;) {
    total += static_cast<size_t>(got);
  }
  std::fprintf(stderr, "read %zu bytes\n", total);
}

/// arguments: what stdout is, number of workers, their program, grace after a signal in ms.
RANK_PROGRAM(launch_onto) {
  const std::string& what = rank.arguments.at(0);
  const int from = replace_stdout(what);
  std::thread reader;
  if (what == "read late") reader = std::thread(read_late, from);
  const LaunchResult result = launch({.num_workers = std::stoi(rank.arguments.at(1)),
                                      .command = {"/proc/self/exe"},
                                      .environment = {"TUTTI_TEST_PROGRAM=" + rank.arguments.at(2)},
                                      .failure_grace = 100ms,
                                      .signal_grace = Millis(std::stoi(rank.arguments.at(3))),
                                      .announce = what == "closed",
                                      .prefix_output = false});
  if (reader.joinable()) {
    close(STDOUT_FILENO);
    reader.join();
  }
  struct sigaction pipes{};
  sigaction(SIGPIPE, nullptr, &pipes);
  std::fprintf(stderr, "%s\nroot worker %d, SIGPIPE %s\n", failure_report(result).c_str(),
               result.root_worker, pipes.sa_handler == SIG_DFL ? "as before" : "changed");
  std::_Exit(result.exit_code);
}

RankOutcome launch_onto(const std::string& what, int workers, const std::string& program,
                        const KillPlan& kill = {}, Millis grace = 200ms) {
  return run_ranks(
      1, "launch_onto",
      {.kill = kill,
       .limit = 30s,
       .arguments = {what, std::to_string(workers), program, std::to_string(grace.count())}})[0];
}

/// Prints until nobody takes it any more, and says so.
void fill_stdout() {
  fcntl(STDOUT_FILENO, F_SETFL, O_NONBLOCK);
  const std::string lines(4096, '\n');
  pollfd entry{STDOUT_FILENO, POLLOUT, 0};
  while (poll(&entry, 1, 500) > 0) {
    if (write(STDOUT_FILENO, lines.data(), lines.size()) < 0) require(errno == EAGAIN, "write");
  }
  std::fprintf(stderr, "full\n");
}

constexpr size_t kFlood = 4 << 20;  // many times what pipes hold: the launcher is reading

void print_bytes(size_t count) {
  const std::string lines(1 << 16, '\n');
  for (size_t done = 0; done < count; done += lines.size()) {
    require(write(STDOUT_FILENO, lines.data(), lines.size()) >= 0, "write");
  }
}

RANK_PROGRAM(flood_beside_a_death) {
  if (rank.rank == 0) {
    print_bytes(kFlood);
    std::thread([] { print_bytes(SIZE_MAX); }).detach();
  }
  join();  // the flood is there now
  if (rank.rank == 1) std::raise(SIGKILL);
  while (true) pause();
}

RANK_PROGRAM(leave_a_flood) {
  int begun[2];
  require(pipe(begun) == 0, "pipe");
  if (fork() == 0) {
    print_bytes(kFlood);
    require(write(begun[1], "x", 1) == 1, "write");
    print_bytes(SIZE_MAX);
  }
  char byte = 0;
  require(read(begun[0], &byte, 1) == 1, "read");
}

TEST(LauncherStreams, AFloodHidesNoDeath) {
  const auto out = launch_onto("null", 2, "flood_beside_a_death");
  EXPECT_FALSE(out.timed_out);
  EXPECT_EQ(out.exit_code, 128 + SIGKILL);
  EXPECT_THAT(out.log, HasSubstr("root worker 1"));
}

TEST(LauncherStreams, AFloodThatAWorkerLeavesBehindEndsWithIt) {
  const auto out = launch_onto("null", 1, "leave_a_flood");
  EXPECT_FALSE(out.timed_out);
  EXPECT_EQ(out.exit_code, 0);
}

RANK_PROGRAM(fill_and_wait) {
  fill_stdout();
  while (true) pause();
}

RANK_PROGRAM(fill_and_answer_signal_with_signal) {
  std::signal(SIGTERM, [](int) { kill(getppid(), SIGTERM); });
  fill_stdout();
  while (true) pause();
}

RANK_PROGRAM(fill_beside_a_death) {
  fill_stdout();
  if (rank.rank == 1) std::raise(SIGKILL);
  while (true) pause();
}

TEST(LauncherStreams, ASignalCountsThoughNobodyReads) {
  const auto out =
      launch_onto("unread", 1, "fill_and_wait", {.rank = 0, .after = "full", .signal = SIGTERM});
  EXPECT_FALSE(out.timed_out);
  EXPECT_EQ(out.exit_code, 128 + SIGTERM);
  EXPECT_THAT(out.log, HasSubstr("ended by SIGTERM"));
}

TEST(LauncherStreams, ASecondSignalEndsAtOnceThoughNobodyReads) {
  const auto out = launch_onto("unread", 1, "fill_and_answer_signal_with_signal",
                               {.rank = 0, .after = "full", .signal = SIGTERM}, 1h);
  EXPECT_FALSE(out.timed_out);
  EXPECT_EQ(out.exit_code, 128 + SIGTERM);
}

TEST(LauncherStreams, ADeathCountsThoughNobodyReads) {
  const auto out = launch_onto("unread", 2, "fill_beside_a_death");
  EXPECT_FALSE(out.timed_out);
  EXPECT_EQ(out.exit_code, 128 + SIGKILL) << out.log;
  EXPECT_THAT(out.log, HasSubstr("root worker 1"));
}

RANK_PROGRAM(print_much) {
  const std::string lines(1 << 20, '\n');
  size_t done = 0;
  while (done < lines.size()) {
    const ssize_t got = write(STDOUT_FILENO, lines.data() + done, lines.size() - done);
    require(got > 0, "write");
    done += static_cast<size_t>(got);
  }
}

TEST(LauncherStreams, AReaderThatIsLateGetsEverything) {
  const auto out = launch_onto("read late", 1, "print_much");
  EXPECT_EQ(out.exit_code, 0);
  EXPECT_THAT(out.log, HasSubstr("read 1048576 bytes"));
}

TEST(LauncherStreams, AReaderThatWentAwayEndsNobody) {
  const auto out = launch_onto("broken", 1, "print_much");
  EXPECT_EQ(out.exit_code, 0);
  EXPECT_THAT(out.log, HasSubstr("SIGPIPE as before"));
}

TEST(LauncherStreams, ClosedStreamsAreNotMistakenForOthers) {
  const auto out = launch_onto("closed", 2, "join_and_add");
  EXPECT_FALSE(out.timed_out);
  EXPECT_EQ(out.exit_code, 0) << out.log;
  EXPECT_THAT(out.log, HasSubstr("root worker -1"));
}

/// arguments: "join" first, or not.
RANK_PROGRAM(write_into_a_broken_pipe) {
  if (!rank.arguments.empty() && rank.arguments[0] == "join") join();
  int ends[2];
  require(pipe(ends) == 0, "pipe");
  close(ends[0]);
  require(write(ends[1], "x", 1) == 1, "write");
}

TEST(LauncherStreams, WorkersMayDieOfABrokenPipe) {
  const auto out = launch_onto("null", 1, "write_into_a_broken_pipe");
  EXPECT_EQ(out.exit_code, 128 + SIGPIPE) << out.log;
}

// From join() on a program's log may lose its reader, and what it writes may be too long.
TEST(LauncherStreams, AWorkerThatHasJoinedGetsErrors) {
  const auto out = run_workers(1, "write_into_a_broken_pipe", {"join"});
  EXPECT_EQ(out.exit_code, 1) << out.log;
  EXPECT_THAT(out.log, HasSubstr("write: Broken pipe (errno 32)"));
}

}  // namespace
}  // namespace tutti::test
