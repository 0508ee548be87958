#include "tutti/cluster/launch/detail/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <csignal>
#include <cstring>
#include <set>

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

std::string WorkerResult::more_of_error() const {
  const size_t more = error.find('\n');
  return more == std::string::npos ? "" : error.substr(more);
}

const WorkerResult* LaunchResult::root() const {
  const auto found = std::ranges::find(workers, root_worker, &WorkerResult::worker);
  return root_worker < 0 || found == workers.end() ? nullptr : &*found;
}

namespace {

std::string others_in_a_line(const LaunchResult& result) {
  std::string others;
  for (const WorkerResult& worker : result.workers) {
    if (!worker.failed() || worker.worker == result.root_worker) continue;
    WorkerResult brief = worker;
    brief.error.clear();  // secondary failures are folded
    others += fmt::format("{}{} {}{}", others.empty() ? "" : ", ", worker.name(), brief.ending(),
                          worker.stopped_by_launcher ? " (ended by tutti)" : "");
  }
  return others.empty() ? "" : fmt::format("after the first failure: {}\n", others);
}

// Who all say the same say it once.
std::string errors_of_others(const LaunchResult& result) {
  std::set<std::string> told = {""};
  if (const WorkerResult* root = result.root()) told.insert(root->error);
  std::string text;
  for (const WorkerResult& worker : result.workers)
    if (worker.failed() && !worker.follows() && !worker.told && told.insert(worker.error).second)
      text += fmt::format("{}: {}\n", worker.name(), printable(worker.error));
  return text;
}

std::string last_lines_of(const WorkerResult& root, int64_t oom_kills) {
  std::string text;
  if (!root.last_lines.empty()) text += fmt::format("last lines of {}:\n", root.name());
  for (const std::string& line : root.last_lines)
    text += "  " + printable(line, kMostOfALine) + "\n";
  if (root.signal == SIGKILL && !root.stopped_by_launcher)
    text += oom_kills > 0
                ? fmt::format("memory ran out: the kernel killed {} of this cgroup's processes\n",
                              oom_kills)
                : "a SIGKILL that nobody sent is often the kernel's answer to memory running out\n";
  return text;
}

}  // namespace

std::string failure_report(const LaunchResult& result) {
  if (result.root_cause.empty()) return "";
  std::string text = others_in_a_line(result) + errors_of_others(result);
  std::string cause = result.root_cause;
  if (const WorkerResult* root = result.root()) {
    text += last_lines_of(*root, result.oom_kills);
    if (!root->told) cause += root->more_of_error();
  }
  if (!result.flight_records.empty())
    text += fmt::format("what each rank did last is in {0}: `tutti doctor record {0}/*.json`\n",
                        result.flight_records);
  return text + printable(cause);
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
