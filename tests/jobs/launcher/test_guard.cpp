// The end of a job whose guard does not end by itself.
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <thread>

#include "tests/support/expect.h"
#include "tests/support/run_workers.h"
#include "tests/support/temp_folder.h"

namespace tutti::test {
namespace {

using namespace std::chrono_literals;

/// Of /proc/PID/stat: "PID (name) STATE PARENT ...".
struct ProcessStat {
  std::string name;
  char state = '-';  // none: it has gone
  pid_t parent = -1;
};

ProcessStat stat_of(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string text;
  std::getline(file, text);
  const size_t begin = text.find('('), end = text.rfind(')');
  if (end == std::string::npos) return {};
  return {text.substr(begin + 1, end - begin - 1), text.at(end + 2),
          static_cast<pid_t>(std::stoi(text.substr(end + 4)))};
}

void wait_until(const std::string& what, const std::function<bool()>& happened) {
  for (const Deadline deadline(20s); !happened(); std::this_thread::sleep_for(1ms))
    if (deadline.passed()) throw Error("this did not happen: " + what);
}

/// The guard of a launcher.
pid_t guard_where(const std::function<bool(pid_t launcher)>& is_the_launcher) {
  pid_t guard = -1;
  wait_until("a guard", [&] {
    for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
      const pid_t pid = std::atoi(entry.path().filename().c_str());
      const ProcessStat facts = pid > 0 ? stat_of(pid) : ProcessStat{};
      if (facts.name == "tutti-guard" && is_the_launcher(facts.parent)) guard = pid;
    }
    return guard > 0;
  });
  return guard;
}

RANK_PROGRAM(stop_the_guard) {
  const pid_t guard = guard_where([](pid_t launcher) { return launcher == getppid(); });
  kill(guard, SIGSTOP);
  wait_until("the guard stops", [&] { return stat_of(guard).state == 'T'; });
}

/// arguments: a file that says when to end.
RANK_PROGRAM(end_when_told) {
  rank.mark("ready");
  wait_until("the file", [&] { return std::filesystem::exists(rank.arguments.at(0)); });
}

/// Whoever traces a process keeps it from being reaped by its parent, so that its end takes as long
/// as a test wants.
class HeldGuard {
 public:
  HeldGuard() {
    guard_ = guard_where([](pid_t launcher) { return stat_of(launcher).parent == getpid(); });
    launcher_ = stat_of(guard_).parent;
    if (ptrace(PTRACE_SEIZE, guard_, nullptr, nullptr) != 0)
      throw Error("the guard cannot be traced: " + errno_words(errno));
  }
  HeldGuard(const HeldGuard&) = delete;
  ~HeldGuard() { let_go(); }

  pid_t pid() const { return guard_; }
  pid_t launcher() const { return launcher_; }
  void wait_until_killed() const {
    wait_until("the guard is killed", [&] { return stat_of(guard_).state == 'Z'; });
  }
  void let_go() {
    if (guard_ > 0) waitpid(guard_, nullptr, __WALL);
    guard_ = -1;
  }

 private:
  pid_t guard_ = -1;
  pid_t launcher_ = -1;
};

TEST(Guard, AStoppedOneDoesNotHoldUpTheEnd) {
  const auto out = run_workers(1, "stop_the_guard");
  EXPECT_FALSE(out.timed_out) << out.log;
  EXPECT_EQ(out.exit_code, 0) << out.log;
  EXPECT_THAT(out.log, Not(HasSubstr("LEFT")));
}

TEST(Guard, ASignalDuringTheEndIsTheExitCode) {
  const TempFolder folder;
  const std::string file = folder / "end";
  const auto out = run_workers(1, "end_when_told", {file},
                               {.rank = 0, .after = "[0] ready", .signal = 0, .then = [&] {
                                  HeldGuard guard;
                                  put_bytes(file, "");
                                  guard.wait_until_killed();
                                  kill(guard.launcher(), SIGTERM);
                                }});
  EXPECT_FALSE(out.timed_out) << out.log;
  EXPECT_EQ(out.exit_code, 128 + SIGTERM) << out.log;
  EXPECT_THAT(out.log, HasSubstr("ended by SIGTERM"));
  EXPECT_THAT(out.log, Not(HasSubstr("LEFT")));
}

TEST(Guard, OneThatCannotGoIsNamedAndLeft) {
  const TempFolder folder;
  const std::string file = folder / "end";
  std::optional<HeldGuard> guard;
  const auto out = run_workers(1, "end_when_told", {file},
                               {.rank = 0, .after = "[0] ready", .signal = 0, .then = [&] {
                                  guard.emplace();
                                  put_bytes(file, "");
                                }});
  EXPECT_FALSE(out.timed_out) << out.log;
  EXPECT_EQ(out.exit_code, 0) << out.log;
  EXPECT_THAT(out.log, HasSubstr("the guard (pid " + std::to_string(guard->pid()) +
                                 ") was killed and has not gone in 5000 ms"));
}

}  // namespace
}  // namespace tutti::test
