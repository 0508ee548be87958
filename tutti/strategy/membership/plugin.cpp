// The plugin of strategy tpu: one client, of one process or of all of a job.
#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "tutti/base/error.h"
#include "tutti/cluster/join/join.h"
#include "tutti/cluster/spec/tpu_resolver.h"
#include "tutti/strategy/membership/detail/worlds.h"

namespace tutti::detail {
namespace {

constexpr Millis kPluginBegins{60'000};  // one for TPUs may ask a server for as long

/// All workers ask for the same, or nobody's plugin waits for the others'.
void agree_before(Group workers, const StrategyOptions& options) {
  const std::string own = strategy_words(options, options.replicas);
  std::map<int, std::string> all;
  for (const auto& said : bytes_of_all(workers, std::as_bytes(std::span(own)), options.time_limit))
    all.emplace(std::ssize(all),
                std::string(reinterpret_cast<const char*>(said.data()), said.size()));
  require_same_lines("strategy", all);
}

void require_processes(const pjrt::Client& client, const Group& workers) {
  std::set<int> processes;
  for (const pjrt::DeviceFacts& device : client.all_devices()) processes.insert(device.process);
  const std::string who = pjrt::words_of(client.facts());
  if (std::ssize(processes) != workers.size())
    throw UsageError(fmt::format(
        "strategy tpu, worker {} of {}: {}; got {} devices of {}, expected devices of {} "
        "processes: this plugin does not make one client of several; train on one host, or take "
        "multi_worker",
        workers.rank(), workers.size(), who, client.all_devices().size(),
        processes.size() == 1 ? fmt::format("process {}", *processes.begin())
                              : fmt::format("{} processes", processes.size()),
        workers.size()));
  if (client.process() != workers.rank())
    throw UsageError(fmt::format(
        "strategy tpu, worker {} of {}: {} says that this is process {}; give processes the same "
        "numbers (TPU_WORKER_ID)",
        workers.rank(), workers.size(), who, client.process()));
}

}  // namespace

int processes_of(const StrategyOptions& options, const cluster::TpuResolver& resolver) {
  const auto job = options.alone ? std::nullopt : job_of_this_process();
  const int processes = job ? job->num_workers : 1;
  if (resolver.num_workers() == 1 ||
      (resolver.num_workers() == processes && resolver.worker() == job->worker))
    return processes;
  if (options.alone)
    throw UsageError(fmt::format(
        "strategy tpu: {} hosts, of which this is number {}, and this command is of one process; "
        "run it where TPU_WORKER_HOSTNAMES names one host, or by --strategy one_device",
        resolver.num_workers(), resolver.worker()));
  if (!job)
    throw UsageError(fmt::format(
        "strategy tpu: {} hosts, of which this is number {}, and nothing says where their "
        "processes meet; start the program on each by a launcher: tutti run --nodes {} "
        "--node-rank {} --rendezvous {}:29400 -n 1 PROGRAM ARGS... (docs/guide/launching.md)",
        resolver.num_workers(), resolver.worker(), resolver.num_workers(), resolver.worker(),
        resolver.hosts().front()));
  throw UsageError(
      fmt::format("strategy tpu: TPU_WORKER_HOSTNAMES and TPU_WORKER_ID say host {} of {}, {} says "
                  "worker {} of {}; start one process a host, in that order",
                  resolver.worker(), resolver.num_workers(), job->source, job->worker, processes));
}

pjrt::Client open_plugin(const StrategyOptions& options, const cluster::TpuResolver& resolver) {
  const int processes = processes_of(options, resolver);
  const Millis limit = std::max(options.time_limit, kPluginBegins);
  const std::string& plugin = options.plugin;
  if (processes == 1)
    return pjrt::Client::open(
        pjrt::find_plugin(plugin),
        {.options = pjrt::options_for(plugin, std::max(1, options.replicas)), .limit = limit});
  const Group workers = join(options.time_limit);
  agree_before(workers, options);
  if (options.replicas % processes != 0)
    throw UsageError(fmt::format("--replicas {} over {} workers: expected as many on each",
                                 options.replicas, processes));
  pjrt::Client client = pjrt::Client::open(
      pjrt::find_plugin(plugin),
      {.options = pjrt::options_for(plugin, std::max(1, options.replicas / processes),
                                    {.process = workers.rank(), .processes = processes}),
       .limit = limit,
       .key_values = key_values_of_job(fmt::format("plugin of {} replicas", options.replicas),
                                       options.time_limit)});
  require_processes(client, workers);
  return client;
}

void require_all_devices(const StrategyOptions& options, const pjrt::Client& client,
                         int processes) {
  const auto all = std::ssize(client.all_devices());
  if (client.num_devices() * processes == all && options.replicas == all) return;
  throw UsageError(
      fmt::format("--replicas {}: {} processes have {} devices, {} of them here; of several "
                  "processes all devices are replicas, and each has as many",
                  options.replicas, processes, all, client.num_devices()));
}

}  // namespace tutti::detail
