// tutti_bench scale: networks by number of replicas, as threads and as processes, beside as many
// that never talk.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "tutti/base/error.h"
#include "tutti/base/file.h"
#include "tutti/base/host.h"
#include "tutti/base/json.h"
#include "tutti/cli/bench/runs.h"
#include "tutti/cli/bench/timing.h"
#include "tutti/cli/checks.h"

#include "bench/compare/contenders.h"
#include "bench/compare/networks.h"
#include "bench/compare/our_networks.h"

namespace tutti::bench {
using namespace cli;
namespace {

constexpr double kScaleTimedMs = 1500;
constexpr int64_t kScaleWarm = 3, kScaleLeast = 3, kScaleMost = 500;

struct ScaledSteps {
  std::vector<double> threads, processes, alone;  // ms, by round
};

ScaledSteps measure_replicas(const NetworkSubject& subject, int replicas,
                             const ScaleNetworksFlags& flags) {
  const NetworkWork work(subject.name, subject.batch / kReplicas * replicas);
  const auto ms = [&](const char* strategy, int64_t steps) {
    const std::string kind = replicas == 1 ? "one_device" : strategy;
    return run_ours(work, kind, replicas, kScaleWarm, steps).step_ms;
  };
  int64_t steps = flags.steps;
  if (steps == 0)
    steps = std::clamp<int64_t>(std::llround(kScaleTimedMs / ms("mirrored", kScaleLeast)),
                                kScaleLeast, kScaleMost);
  ScaledSteps found;
  for (int64_t round = 0; round < flags.rounds; ++round) {
    found.threads.push_back(ms("mirrored", steps));
    // A table of rows is in one process, or on servers.
    if (!subject.table) found.processes.push_back(ms("multi_worker", steps));
    found.alone.push_back(ms("independent", steps));
  }
  return found;
}

double median_share(const std::vector<double>& alone, const std::vector<double>& ours) {
  std::vector<double> shares;
  for (size_t i = 0; i < ours.size(); ++i) shares.push_back(alone[i] / ours[i]);
  return median(shares);
}

std::string scale_row(const NetworkSubject& subject, int replicas, const ScaledSteps& steps,
                      const OrderedJson& around) {
  const double of_threads = median_share(steps.alone, steps.threads);
  const double of_processes = median_share(steps.alone, steps.processes);
  const auto cell = [&](double value) {
    return steps.processes.empty() ? "-" : fmt::format("{:.2f}", value);
  };
  fmt::print("{:<14} {:>8} {:>11.2f} {:>13} {:>16.2f} {:>11.2f} {:>13}\n", subject.name, replicas,
             median(steps.threads), cell(median(steps.processes)), median(steps.alone), of_threads,
             cell(of_processes));
  std::fflush(stdout);
  OrderedJson line = {{"bench", "scale networks"},
                      {"model", subject.name},
                      {"replicas", replicas},
                      {"batch_per_replica", subject.batch / kReplicas},
                      {"threads_ms", median(steps.threads)},
                      {"never_talk_ms", median(steps.alone)},
                      {"threads_share_of_limit", of_threads}};
  if (!steps.processes.empty())
    line.update(OrderedJson{{"processes_ms", median(steps.processes)},
                            {"processes_share_of_limit", of_processes}});
  line.update(around);
  return line.dump() + "\n";
}

}  // namespace

int scale_networks(const ScaleNetworksFlags& flags) {
  if (!flags.json.empty()) require_writable(flags.json, "--json");
  const auto subjects = networks_in(flags.models);
  const auto counts = parse_numbers("--replicas", flags.replicas, 1, 4096);
  const int64_t most = std::ranges::max(counts), cores = host_facts().usable_cores;
  if (most > cores)
    throw UsageError(fmt::format(
        "--replicas {}: {} replicas need a core each, and this process may use {}; try {}",
        flags.replicas, most, cores, cores == 1 ? "1" : fmt::format("1,{}", cores)));
  python_with_torch();
  const OrderedJson around = surroundings();
  fmt::print("{:<14} {:>8} {:>11} {:>13} {:>16} {:>11} {:>13}\n", "model", "replicas", "threads ms",
             "processes ms", "never talking ms", "of threads", "of processes");
  std::string lines;
  for (const auto& subject : subjects)
    for (const int64_t count : counts) {
      const int replicas = static_cast<int>(count);
      lines += scale_row(subject, replicas, measure_replicas(subject, replicas, flags), around);
    }
  fmt::print("{}", lines);
  if (!flags.json.empty()) write_file_atomically(flags.json, lines);
  return 0;
}

}  // namespace tutti::bench
