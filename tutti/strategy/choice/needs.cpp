#include "tutti/strategy/choice/needs.h"

#include <cstdlib>

#include "tutti/base/error.h"
#include "tutti/cluster/join/join.h"
#include "tutti/cluster/spec/detail/environment.h"
#include "tutti/device/devices.h"

namespace tutti {
namespace {

using Options = StrategyOptions;

// "auto" is GPUs where there are any.
bool may_use_gpus(const Options& o) { return needs_gpus(o.device) || o.device == "auto"; }
bool uses_nccl(const Options& o) { return o.kind == "multi_worker" && may_use_gpus(o); }
bool uses_servers(const Options& o) { return o.uses_servers(); }
bool of_several_processes(const Options& o) { return o.kind == "multi_worker" || o.uses_servers(); }
bool in_step_on_servers(const Options& o) {
  return o.uses_servers() && o.served.staleness.synchronous() && o.served.drop_slowest == 0 &&
         o.served.on_lost_worker == ps::OnLostWorker::end;
}

constexpr std::string_view kOfGpus = "it is of GPUs, and --device cpu uses none";
constexpr std::string_view kOfServers =
    "it says what parameter servers do, and this strategy has none (--strategy parameter_server)";

template <auto field>
bool is_set(const Options& o) {
  return o.*field != Options().*field;
}

template <auto field>
bool is_set_of_servers(const Options& o) {
  return o.served.*field != ServedOptions().*field;
}

}  // namespace

const std::vector<NeededBy<StrategyOptions>>& needs_of_options() {
  using Row = NeededBy<Options>;
  using Served = ServedOptions;
  static const std::vector<Row> rows = {
      {"--engine", uses_nccl,
       "it adds up the gradients of several processes on GPUs, and here all replicas are in one, "
       "or on the CPU",
       is_set<&Options::engine>},
      {"--sum-order", uses_nccl,
       "it is of NCCL, which adds up the gradients of several processes on GPUs; here the order is "
       "always that of the reduction shape",
       is_set<&Options::sum_order>},
      {"--deterministic", may_use_gpus,
       "CPUs give the same bits in every run anyway, and --device cpu uses no GPU",
       is_set<&Options::deterministic>},
      {"--memory-limit", may_use_gpus, kOfGpus, is_set<&Options::memory_limit_mib>},
      {"--step-graph", may_use_gpus, kOfGpus, is_set<&Options::step_graph>},
      {"--compression-start", [](const Options& o) { return o.compression.on(); },
       "it is the first step that is compressed, and --compression is none",
       [](const Options& o) { return o.compression.start_step != 0; }},
      {"--reduction-shape", [](const Options& o) { return o.kind == "one_device"; },
       "it can be chosen under one_device alone; elsewhere it is where the replicas are",
       is_set<&Options::reduction_shape>},
      {"--algorithm-table", [](const Options& o) { return o.kind == "multi_worker"; },
       "this strategy sends nothing between hosts", is_set<&Options::table>},
      {"--reduction", [](const Options& o) { return !o.uses_servers(); },
       "strategy parameter_server adds gradients on its servers, so that none can be chosen"},
      {"--staleness", uses_servers, kOfServers,
       [](const Options& o) { return !o.served.staleness.synchronous(); }},
      {"--drop-slowest", uses_servers, kOfServers, is_set_of_servers<&Served::drop_slowest>},
      {"--on-lost-worker", uses_servers, kOfServers, is_set_of_servers<&Served::on_lost_worker>},
      {"--scale-by-staleness", uses_servers, kOfServers,
       is_set_of_servers<&Served::scale_by_staleness>},
      {"--delay-compensation", uses_servers, kOfServers,
       is_set_of_servers<&Served::delay_compensation>},
      {"--placement", uses_servers, kOfServers,
       [](const Options& o) { return o.served.placement.how != Served().placement.how; }},
      {"--partition", uses_servers, kOfServers,
       [](const Options& o) {
         return o.served.placement.partitioner.words() != Served().placement.partitioner.words();
       }},
      {"--host-sums", in_step_on_servers,
       "it is of parameter servers whose workers are in step, none of which may be left out or "
       "lost "
       "(--strategy parameter_server --staleness 0)",
       is_set_of_servers<&Served::host_sums>},
      {"stop_if_not_finite", uses_servers, kOfServers,
       is_set_of_servers<&Served::stop_if_not_finite>},
      {"piece_bytes", uses_servers, kOfServers, is_set_of_servers<&Served::piece_bytes>},
      {"shard_bucket_bytes", [](const Options& o) { return !o.shard.empty(); },
       "it is of what is cut over the replicas, and nothing is (--shard)",
       is_set<&Options::shard_bucket_bytes>},
      {"alone", [](const Options& o) { return !of_several_processes(o); },
       "this strategy is of several processes", is_set<&Options::alone>},
  };
  return rows;
}

void refuse_idle_options(const StrategyOptions& options) {
  refuse_idle(options.typed, options, needs_of_options(), " under " + options.kind);
}

void refuse_nccl_options(const StrategyOptions& options) {
  std::vector<NeededBy<Options>> rows;
  for (NeededBy<Options> row : needs_of_options()) {
    if (row.useful != uses_nccl) continue;
    row.useful = [](const Options&) { return false; };
    rows.push_back(row);
  }
  refuse_idle(options.typed, options, rows, " under " + options.kind);
}

void check_launched(const StrategyOptions& options) {
  if (options.alone) return;
  const auto job = of_several_processes(options) ? std::nullopt : job_of_this_process();
  if (job && job->kind == TaskKind::worker && job->num_workers > 1)
    throw UsageError(fmt::format(
        "--strategy {} is for one process, but a launcher started {} workers ({}), each of which "
        "would do all of the work; use --strategy multi_worker, or start it without `tutti run`; a "
        "program whose workers are to train apart, as in a sweep, sets StrategyOptions::alone",
        options.kind, job->num_workers, job->source));
  const char* const servers = std::getenv(detail::kNumServersVariable);
  if (!options.uses_servers() && servers != nullptr)
    throw UsageError(
        fmt::format("--strategy {} has no part for the {} parameter server{} that a launcher "
                    "started (--servers "
                    "of `tutti run`); use --strategy parameter_server, or start it without them",
                    options.kind, servers, std::string_view(servers) == "1" ? "" : "s"));
}

}  // namespace tutti
