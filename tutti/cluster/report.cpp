#include "tutti/cluster/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <csignal>
#include <cstring>

#include "tutti/base/printable.h"

namespace tutti {
namespace {

constexpr size_t kMostOfALine = 1024;  // a worker's lines may be a MiB each

}  // namespace

std::string WorkerResult::name() const {
  if (replicas == 1) return fmt::format("rank {}", worker);
  return fmt::format("worker {} (ranks {} to {})", worker, worker * replicas,
                     (worker + 1) * replicas - 1);
}

std::string WorkerResult::ending() const {
  std::string text;
  if (signal != 0) {
    const char* name = sigabbrev_np(signal);
    text = name != nullptr ? fmt::format("was killed by SIG{}", name)
                           : fmt::format("was killed by signal {}", signal);
  } else {
    text = fmt::format("exited with code {}", exit_code);
  }
  if (!error.empty()) text += ": " + error.substr(0, error.find('\n'));
  return text;
}

std::string failure_report(const LaunchResult& result) {
  if (result.root_cause.empty()) return "";
  std::string others;
  for (const WorkerResult& worker : result.workers) {
    if (!worker.failed() || worker.worker == result.root_worker) continue;
    WorkerResult brief = worker;
    brief.error.clear();  // secondary failures are folded
    others += fmt::format("{}{} {}{}", others.empty() ? "" : ", ", worker.name(), brief.ending(),
                          worker.stopped_by_launcher ? " (ended by tutti)" : "");
  }
  std::string text;
  if (!others.empty()) text += fmt::format("after the first failure: {}\n", others);
  const auto found = std::find_if(result.workers.begin(), result.workers.end(),
                                  [&](const auto& w) { return w.worker == result.root_worker; });
  if (found != result.workers.end()) {
    const WorkerResult& root = *found;
    if (!root.last_lines.empty()) text += fmt::format("last lines of {}:\n", root.name());
    for (const std::string& line : root.last_lines)
      text += "  " + printable(line, kMostOfALine) + "\n";
    if (root.signal == SIGKILL && !root.stopped_by_launcher) {
      text +=
          result.oom_kills > 0
              ? fmt::format("memory ran out: the kernel killed {} of this cgroup's processes\n",
                            result.oom_kills)
              : "a SIGKILL that nobody sent is often the kernel's answer to memory running out\n";
    }
  }
  return text + printable(result.root_cause);
}

namespace detail {

std::optional<int> root_of(const std::vector<Death>& deaths) {
  std::optional<int> first;
  for (const Death& death : deaths) {
    if (!death.failed) continue;
    if (!death.follows) return death.worker;
    if (!first) first = death.worker;
  }
  return first;
}

}  // namespace detail
}  // namespace tutti
