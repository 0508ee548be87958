// What the workers of the launcher's tests do.
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <barrier>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <functional>
#include <stdexcept>
#include <thread>

#include "tutti/base/error.h"
#include "tutti/base/stop.h"
#include "tutti/cluster/join/join.h"
#include "tutti/cluster/launch/launcher.h"
#include "tutti/cluster/launch/restarts.h"

#include "tests/support/run_ranks.h"

namespace tutti::test {
namespace {

using namespace std::chrono_literals;

RANK_PROGRAM(say_lines) {
  std::printf("out %d\n\nlast without end", rank.rank);
  std::fflush(stdout);
  std::fprintf(stderr, "err %d\n", rank.rank);
}

RANK_PROGRAM(shout) {
  const std::string line(300, static_cast<char>('a' + rank.rank));
  for (int i = 0; i < 200; ++i) {
    std::printf("%s", line.substr(0, 100).c_str());
    std::fflush(stdout);
    std::printf("%s\n", line.substr(100).c_str());
  }
}

void fail(const std::string& way) {
  if (way == "kill") std::raise(SIGKILL);
  if (way == "stop") std::raise(SIGSTOP);
  if (way == "exit") std::_Exit(3);
  if (way == "throw" || way == "give_up") throw DataError("row 17 is damaged");
  if (way == "abort") std::abort();
}

/// arguments: way to fail, when (start, middle, end). Rank 1 fails.
RANK_PROGRAM(fail_in_training) {
  const std::string& way = rank.arguments.at(0);
  const std::string& when = rank.arguments.at(1);
  const Millis limit = way == "stop" ? 1'000ms : 20'000ms;
  const bool failing = rank.rank == 1;
  try {
    if (failing && when == "start") fail(way);
    Group world = join(limit);
    for (int step = 0; step < 100; ++step) {
      if (failing && when == "middle" && step == 50) {
        if (way == "give_up") world.abort("row 17 is damaged");
        fail(way);
      }
      std::vector<float> values(1000, static_cast<float>(rank.rank));
      world.all_reduce(span_of(std::span(values)), ReduceOp::sum, limit).wait(limit);
    }
    if (failing && when == "end") fail(way);
    world.barrier(limit);
  } catch (const std::exception& error) {
    report_failure(error);
    throw;
  }
}

RANK_PROGRAM(throw_uncaught) {
  join();
  if (rank.rank == 1) {
    std::thread([] { throw UsageError("nobody catches this"); }).join();
  }
  while (true) pause();
}

/// `body`, of which nobody catches what it throws. GCC before 14 ends a noexcept function that has
/// something to clean up, be it the thread sanitizer's, without its exception: this one has
/// nothing.
[[gnu::noinline, gnu::no_sanitize("thread")]]
void uncaught(const std::function<void()>& body) noexcept {
  body();
}

void throw_wrong_use() { throw UsageError("nobody catches this"); }

void throw_one(const std::string& what) {
  if (what == "usage") throw_wrong_use();
  if (what == "data") throw DataError("nobody catches this");
  if (what == "interrupted") throw Interrupted(SIGTERM, "nobody catches this");
  if (what == "standard") throw std::out_of_range("nobody catches this");
  if (what == "number") throw 42;
  throw Error("nobody catches this");
}

/// arguments: which error. The words before it are in a buffer until somebody writes them out.
RANK_PROGRAM(throw_after_words) {
  join();
  std::printf("words without end");
  uncaught([&] { throw_one(rank.arguments.at(0)); });
}

RANK_PROGRAM(throw_in_two_threads) {
  join();
  std::barrier together(2);
  const auto body = [&] {
    together.arrive_and_wait();
    throw_wrong_use();
  };
  std::thread other([&] { uncaught(body); });
  uncaught(body);
}

RANK_PROGRAM(throw_beside_a_stuck_write) {
  join();
  std::barrier locked(2);
  std::thread stuck([&] {
    flockfile(stdout);
    locked.arrive_and_wait();
    while (true) pause();
  });
  locked.arrive_and_wait();
  uncaught(throw_wrong_use);
}

RANK_PROGRAM(throw_with_a_handler_of_its_own) {
  std::set_terminate([] {
    std::fprintf(stderr, "mine\n");
    std::_Exit(7);
  });
  join();
  uncaught(throw_wrong_use);
}

RANK_PROGRAM(throw_everywhere) {
  join();
  uncaught([] { throw UsageError("wrong\n  in this way"); });
}

/// arguments: what becomes of rank 1 while the others wait for it.
RANK_PROGRAM(leave_a_group) {
  Group world = join();
  world.barrier();
  uncaught([&] {
    if (rank.rank == 1) fail(rank.arguments.at(0));
    world.barrier();
  });
}

/// arguments: for each life of the job, the step in which rank 1 is killed; 0: it comes to its end;
/// "wait": it comes to none.
RANK_PROGRAM(live_again) {
  const char* lives = std::getenv("TUTTI_RESTART");
  const int before = lives == nullptr ? 0 : std::stoi(lives);
  if (started_again() != (before > 0)) throw Error("started again?");
  Group world = join();
  if (std::getenv("TUTTI_TOKEN") != nullptr) throw Error("the token is for all that is started");
  const std::string& how = rank.arguments.at(static_cast<size_t>(before));
  if (how == "wait") rank.mark("waits");
  while (how == "wait") pause();
  const int last = std::stoi(how);
  for (int step = 1; step <= 9; ++step) {
    report_step(step);
    if (rank.rank == 1 && step == last) std::raise(SIGKILL);
    world.barrier();
  }
  rank.mark(fmt::format("ends in life {} of {}", before, id_of_all_lives()));
}

/// arguments: those of live_again.
RANK_PROGRAM(launch_lives) {
  std::string steps;
  for (const std::string& step : rank.arguments) steps += step + "\n";
  const LaunchResult result = launch_with_restarts(
      {.num_workers = 2,
       .command = {"/proc/self/exe"},
       .environment = {"TUTTI_TEST_PROGRAM=live_again", "TUTTI_TEST_ARGUMENTS=" + steps}},
      3, [](const std::string& words) { std::fprintf(stderr, "%s\n", words.c_str()); });
  std::_Exit(result.exit_code);
}

/// A launcher for each rank: node `rank` of two, which nobody gives a token. arguments: a free
/// port; then those of live_again.
RANK_PROGRAM(launch_lives_of_a_node) {
  std::string steps;
  for (size_t i = 1; i < rank.arguments.size(); ++i) steps += rank.arguments[i] + "\n";
  unsetenv("TUTTI_TOKEN");
  unsetenv("TUTTI_TOKEN_FILE");
  const LaunchResult result = launch_with_restarts(
      {.num_workers = 1,
       .nodes = {.node = rank.rank,
                 .num_nodes = 2,
                 .rendezvous = "127.0.0.1:" + rank.arguments.at(0),
                 .limit = 20'000ms},
       .command = {"/proc/self/exe"},
       .environment = {"TUTTI_TEST_PROGRAM=live_again", "TUTTI_TEST_ARGUMENTS=" + steps}},
      3, [](const std::string& words) { std::fprintf(stderr, "%s\n", words.c_str()); });
  std::_Exit(result.exit_code);
}

/// A launcher for each rank: the second says that there are three. arguments: a free port.
RANK_PROGRAM(launch_one_of_another_number_of_nodes) {
  launch({.num_workers = 1,
          .nodes = {.node = rank.rank,
                    .num_nodes = 2 + rank.rank,
                    .rendezvous = "127.0.0.1:" + rank.arguments.at(0),
                    .limit = 20'000ms},
          .command = {"/proc/self/exe"}});
}

constexpr Millis kPausedLimit{1'000};  // of each operation, and below the pause

void sleep_for(Millis time) {
  const timespec pause{time.count() / 1000, time.count() % 1000 * 1'000'000};
  nanosleep(&pause, nullptr);
}

/// By a process of its own: rank 1 waits for rank 0 when it is stopped, and goes on before it.
void pause_all(const std::vector<int64_t>& processes) {
  if (fork() != 0) return;
  for (const int64_t process : processes) {
    kill(static_cast<pid_t>(process), SIGSTOP);
    sleep_for(20ms);
  }
  sleep_for(kPausedLimit + 200ms);
  for (size_t i = processes.size(); i-- > 0;) {
    kill(static_cast<pid_t>(processes[i]), SIGCONT);
    sleep_for(20ms);
  }
  _exit(0);
}

/// arguments: engine. All processes of the job are stopped for longer than their limit.
RANK_PROGRAM(go_on_after_a_pause) {
  Group world = rank.arguments.at(0) == "shm"
                    ? join()
                    : join_replicas(1, {.engine = rank.arguments.at(0)}).front();
  std::array<int64_t, 2> own = {getpid(), getppid()};
  std::vector<int64_t> all(4);
  world.all_gather(span_of(std::span(own)), span_of(std::span(all))).wait();
  if (rank.rank == 0) pause_all({all[0], all[2], all[1], all[3]});
  const auto begin = std::chrono::steady_clock::now();
  int64_t paused = 0;  // whether all have seen it
  while (paused < rank.size) {
    paused = std::chrono::steady_clock::now() - begin > kPausedLimit + 200ms ? 1 : 0;
    world.all_reduce(span_of(std::span(&paused, 1)), ReduceOp::sum, kPausedLimit)
        .wait(kPausedLimit);
  }
  rank.mark("goes on");
}

/// A launcher for each rank, on one host. arguments: a free port; then those of its worker.
RANK_PROGRAM(launch_a_node_with_a_pause) {
  setenv("TUTTI_TOKEN", std::string(64, 'a').c_str(), 1);
  const LaunchResult result =
      launch({.num_workers = 1,
              .nodes = {.node = rank.rank,
                        .num_nodes = 2,
                        .rendezvous = "127.0.0.1:" + rank.arguments.at(0),
                        .silence = kPausedLimit},
              .command = {"/proc/self/exe"},
              .environment = {"TUTTI_TEST_PROGRAM=go_on_after_a_pause",
                              "TUTTI_TEST_ARGUMENTS=" + rank.arguments.at(1) + "\n"}});
  std::fprintf(stderr, "%s\n", failure_report(result).c_str());
  std::_Exit(result.exit_code);
}

RANK_PROGRAM(stop_alone) {
  if (rank.rank == 1) std::raise(SIGSTOP);
  rank.mark("ends");
}

/// A launcher whose workers go on without each other.
RANK_PROGRAM(launch_one_that_stops) {
  const LaunchResult result = launch({.num_workers = 2,
                                      .command = {"/proc/self/exe"},
                                      .environment = {"TUTTI_TEST_PROGRAM=stop_alone"},
                                      .end_on_failure = false,
                                      .stopped_limit = 100ms,
                                      .restarts = 3});
  std::fprintf(stderr, "%s\nroot worker %d\n", failure_report(result).c_str(), result.root_worker);
  std::_Exit(result.exit_code);
}

/// A child of a child, which the launcher gets when it ends. Reaped, it is in no list any more.
RANK_PROGRAM(leave_orphans) {
  std::vector<pid_t> orphans;
  for (int i = 0; i < 20; ++i) {
    int told[2];
    if (pipe2(told, O_CLOEXEC) != 0) throw Error("pipe: " + errno_words(errno));
    const pid_t child = fork();
    if (child == 0) {
      const pid_t orphan = fork();
      if (orphan == 0) _exit(0);
      _exit(write(told[1], &orphan, sizeof orphan) == sizeof orphan ? 0 : 1);
    }
    close(told[1]);
    pid_t orphan = -1;
    if (read(told[0], &orphan, sizeof orphan) != sizeof orphan) throw Error("no orphan");
    close(told[0]);
    waitpid(child, nullptr, 0);
    orphans.push_back(orphan);
  }
  const auto is_there = [](pid_t pid) { return kill(pid, 0) == 0; };
  for (const Deadline deadline(20s); std::ranges::any_of(orphans, is_there);
       std::this_thread::sleep_for(1ms))
    if (deadline.passed()) throw Error("an orphan stays a zombie");
  rank.mark("all are gone");
}

RANK_PROGRAM(never_end) {
  std::signal(SIGTERM, SIG_IGN);
  rank.mark("ready");
  if (rank.rank == 1) std::_Exit(3);
  while (true) pause();
}

RANK_PROGRAM(fail_alone) {
  if (rank.rank == 1) std::_Exit(3);
  rank.mark("goes on");
}

RANK_PROGRAM(throw_alone) {
  Group world = join();
  uncaught([&] {
    if (rank.rank == rank.size - 1) throw Error("my own reason\n  try this");
    try {
      world.barrier();
    } catch (const PeerLost&) {
      rank.mark("goes on");
    }
  });
}

RANK_PROGRAM(launch_alone_again) {
  const LaunchResult result = launch({.command = {"/proc/self/exe"},
                                      .environment = {"TUTTI_TEST_PROGRAM=throw_alone"},
                                      .end_on_failure = false,
                                      .restarts = 1});
  std::fprintf(stderr, "%s\n", failure_report(result).c_str());
  std::_Exit(result.exit_code);
}

RANK_PROGRAM(end_in_order) {
  install_stop_handler();
  join();
  rank.mark("ready");
  while (stop_requested() == 0) pause();
  rank.mark("ends in order");
  throw_if_stop_requested("the loop");
}

RANK_PROGRAM(answer_signal_with_signal) {
  static volatile std::sig_atomic_t answered = 0;
  std::signal(SIGINT, [](int) {
    if (answered == 0) kill(getppid(), SIGINT);
    answered = 1;
  });
  rank.mark("ready");
  while (true) pause();
}

RANK_PROGRAM(interrupt_after_a_failure) {
  if (rank.rank == 1) std::_Exit(3);
  try {
    join();
  } catch (const PeerLost&) {  // so the launcher knows
    kill(getppid(), SIGINT);
  }
  while (true) pause();
}

/// Each worker leaves behind: a child, and a child that is in a session of its own.
RANK_PROGRAM(leave_grandchildren) {
  int printed[2];  // its end is read once both grandchildren have printed and closed theirs
  if (pipe2(printed, O_CLOEXEC) != 0) throw Error("pipe: " + errno_words(errno));
  for (bool own_session : {false, true}) {
    const pid_t child = fork();
    if (child == 0) {
      if (own_session) {
        setsid();
        if (fork() != 0) _exit(0);
      }
      std::printf("grandchild pid %d\n", getpid());
      std::fflush(stdout);
      close(printed[1]);
      while (true) pause();
    }
  }
  close(printed[1]);
  char byte = 0;
  if (read(printed[0], &byte, 1) != 0) throw Error("a grandchild wrote to the pipe");
  close(printed[0]);
  if (!rank.arguments.empty() && rank.arguments.at(0) == "stay") {
    join();
    while (true) pause();
  }
}

}  // namespace
}  // namespace tutti::test
