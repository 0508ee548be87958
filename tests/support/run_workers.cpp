#include "tests/support/run_workers.h"

#include <sys/wait.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <sstream>

#include "tutti/cluster/launch/launcher.h"

namespace tutti::test {
namespace {

std::string descriptors_and_children() {
  std::string text;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    text += entry.path().filename().string() + " ";
  }
  siginfo_t none{};
  text += waitid(P_ALL, 0, &none, WEXITED | WNOHANG | WNOWAIT) == 0 ? "children" : "no children";
  return text;
}

/// arguments: number of workers, program, "end" or "continue" on failure, the program's own.
RANK_PROGRAM(launch_workers) {
  std::string own;
  for (size_t i = 3; i < rank.arguments.size(); ++i) own += rank.arguments[i] + "\n";
  const std::string before = descriptors_and_children();
  const LaunchResult result = launch(
      {.num_workers = std::stoi(rank.arguments.at(0)),
       .command = {"/proc/self/exe"},
       .environment = {"TUTTI_TEST_PROGRAM=" + rank.arguments.at(1), "TUTTI_TEST_ARGUMENTS=" + own},
       .end_on_failure = rank.arguments.at(2) == "end",
       .stopped_limit = Millis{100}});
  std::fprintf(stderr, "%s\n", failure_report(result).c_str());
  if (descriptors_and_children() != before) {
    std::fprintf(stderr, "LEFT: was %s, is %s\n", before.c_str(),
                 descriptors_and_children().c_str());
  }
  std::fprintf(stderr, "root worker %d\n", result.root_worker);
  std::fflush(nullptr);
  std::_Exit(result.exit_code);
}

}  // namespace

RankOutcome run_workers(int workers, const std::string& program,
                        const std::vector<std::string>& arguments, const KillPlan& kill,
                        bool end_on_failure, Millis limit) {
  std::vector<std::string> all = {std::to_string(workers), program,
                                  end_on_failure ? "end" : "continue"};
  all.insert(all.end(), arguments.begin(), arguments.end());
  return run_ranks(1, "launch_workers", {.kill = kill, .limit = limit, .arguments = all})[0];
}

std::vector<std::string> lines_after(const std::string& log, const std::string& mark) {
  std::vector<std::string> found;
  std::istringstream lines(log);
  for (std::string line; std::getline(lines, line);) {
    if (const size_t at = line.find(mark); at != line.npos) {
      found.push_back(line.substr(at + mark.size()));
    }
  }
  return found;
}

}  // namespace tutti::test
