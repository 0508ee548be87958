#include "tutti/cli/train/job.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <sstream>
#include <string_view>

#include "tutti/base/error.h"
#include "tutti/base/host.h"
#include "tutti/base/standard_streams.h"
#include "tutti/cli/arguments.h"
#include "tutti/cli/checks.h"
#include "tutti/cli/commands.h"
#include "tutti/cli/run/server_flags.h"
#include "tutti/cli/run/servers.h"
#include "tutti/cli/train/facts.h"
#include "tutti/cli/train/whole_flags.h"
#include "tutti/cluster/join/join.h"
#include "tutti/cluster/launch/launcher.h"
#include "tutti/cluster/spec/detail/environment.h"
#include "tutti/nn/dense_kernel.h"
#include "tutti/strategy/choice/launched.h"
#include "tutti/strategy/membership/detail/worlds.h"

namespace tutti::cli {
namespace {

constexpr int64_t kMostReplicas = 4096;  // in turn
constexpr int64_t kMostLocalSteps = 1'000'000'000;
constexpr int64_t kMostAtOnce = 1024;  // of a shared segment

// Half of what replicas wait: whoever waits for a silent server outlasts its loss.
Millis silence_for(double time_limit_s) {
  return std::max(Millis{1'000}, millis_of(time_limit_s) / 2);
}

void add_strategy_flags(Command& command, JobFlags& flags, std::vector<std::string> strategies) {
  command.group = "Strategy";
  command.add(
      "--strategy", "NAME", &flags.strategy, one_of("strategy", std::move(strategies)),
      "Where the replicas are: one_device (in turn, on one), mirrored (threads of this "
      "process), multi_worker (processes), central_storage (threads, one copy of the "
      "parameters), parameter_server (processes, and servers that update), tpu (devices of "
      "--plugin, for which whole steps are compiled); mirrored by itself where --device names "
      "several");
  command.add(
      "--replicas", "N", &flags.replicas, whole_number(1, kMostReplicas),
      "Copies of the model that train together, in all (default: 1 for one_device, else the "
      "workers, one a GPU or a device of --plugin, or on the CPU the usable cores)");
  command.add("--mesh", "AXIS=N,...", &flags.mesh, some_name(),
              "Deals the replicas out over axes data, shard, stage and tensor, "
              "\"data=2,stage=2,tensor=2\": "
              "ranks that differ in stage have other layers of a copy, in tensor other pieces of "
              "each (docs/guide/model_parallel.md)");
  command.add(
      "--shard", "WHAT", &flags.shard, one_of("shard", {"state", "gradients", "parameters"}),
      "What is cut over the replicas, or over the ranks on axis shard of --mesh: state "
      "(of the optimizer), gradients (state too), parameters (all) (docs/design/shards.md)");
  command.add(
      "--shares", "SHARES", &flags.shares, some_name(),
      "Of a batch, for unlike replicas: in numbers, 2,1; by-speed, as fast as each computes a "
      "row (by-speed:FILE records how they change); file:FILE, as was recorded "
      "(docs/guide/performance.md)");
  command.add("--tensor-blocks", "T", &flags.tensor_blocks, whole_number(1, 1024),
              "Blocks that layers are cut into (default: the size of axis tensor); with as many "
              "all sizes of it train the same bits");
  command.add("--reduction-shape", "SHAPE", &flags.reduction_shape,
              "one_device: add gradients as these hosts would, \"2x3\" or \"3+1\"");
  add_device_flags(command, flags.devices);
  command.when_parsed = [&command, &flags] {
    if (!command.was_typed("--strategy") && several_devices(flags.devices))
      flags.strategy = "mirrored";
    flags.typed = command.typed();
  };
  command.add("--threads", "T", &flags.threads, whole_number(1, 1024),
              "Threads of LibTorch in each replica (default: usable cores / replicas)");
  command.add("--dense-kernel", "NAME", &flags.dense_kernel,
              one_of("dense kernel", nn::dense_kernel_names()),
              "What multiplies the matrices of dense layers: blas or onednn (default: the faster "
              "one on this processor; the one of a checkpoint to go on from)");
  command.add("--time-limit", "SECONDS", &flags.time_limit_s, positive_number(kMostSeconds),
              "How long one replica waits for another before it gives up");
  command.add("--grace", "SECONDS", &flags.grace_s, number_between(0, kMostSeconds),
              "How long workers may take to end after Ctrl-C or SIGTERM (default: 2; with a "
              "checkpoint to write 30)");
}

void add_reduction_flags(Command& command, JobFlags& flags) {
  command.group = "Reduction";
  std::vector<std::string> reductions = cross_device_names();
  reductions.insert(reductions.begin(), "fused");
  command.add("--reduction", "NAME", &flags.reduction, one_of("reduction", std::move(reductions)),
              "How replicas add gradients: fused (adds and updates at once), all_reduce, "
              "to_one_device or hierarchical_copy; all give the same bits");
  command.add(
      "--sum-order", "ORDER", &flags.sum_order,
      renamed_word("--sum-order", "shape", "fixed", one_of("order of summation", {"any", "fixed"})),
      "multi_worker on GPUs, or by an engine that --communication names: any, as it adds, on GPUs "
      "while backward goes on; fixed (shape, until the next release), with the bits of one "
      "process");
  command.add("--communication", "NAME", &flags.communication,
              one_of("implementation of communication", communication_names()),
              "By what replicas exchange gradients: auto, as fits where they are; shm, tcp, hier, "
              "mpi, nccl, an engine; ring, tree, tcp that adds up along these; the JSON says what "
              "it was, and why (docs/guide/strategies.md)");
  command.add("--engine", "NAME", &flags.engine, one_of("engine", {"nccl", "hier"}),
              "multi_worker on GPUs: nccl over all hosts; hier, NCCL inside each, and between "
              "them what their processes use");
  command.add("--piece-mib", "MIB", &flags.piece_mib, number_between(0, 1024),
              "multi_worker, parameter_server: gradients go between hosts and to servers in pieces "
              "of so many MiB (default, 0: 1 for two hosts, 2 to four, 3 to eight; `tutti plan "
              "choose` predicts the best)");
  command.add("--compression", "KIND", &flags.compression, compression_word(),
              "Makes gradients smaller on their way: none, bf16, fp16, topk:RATIO, onebit or "
              "powersgd:RANK (docs/guide/reductions.md)");
  command
      .add("--compression-start", "STEP", &flags.compression_start,
           whole_number(0, int64_t{1} << 40), "Steps before this one are not compressed")
      .preset = "0";
  command.add("--local-steps", "H", &flags.local_steps, whole_number(1, kMostLocalSteps),
              "Replicas make H updates of their own, then take the mean of what they have learnt "
              "(local SGD, DiLoCo: docs/guide/less_communication.md)");
  command
      .add("--local-start", "STEP", &flags.local.start_step, whole_number(0, int64_t{1} << 40),
           "Updates before this one are made together (post-local SGD)")
      .preset = "0";
  command.add("--outer-learning-rate", "R", &flags.local.outer.learning_rate, positive_number(10),
              "Of the step that the mean change is taken as the gradient of");
  command.add("--outer-momentum", "M", &flags.local.outer.momentum, number_between(0, 1),
              "Of that step; DiLoCo has 0.9, with --outer-nesterov and a rate of 0.7");
  command.flag("--outer-nesterov", &flags.local.outer.nesterov,
               "Its momentum is of Nesterov's kind");
  command.add("--algorithm-table", "FILE", &flags.table, some_name(),
              "multi_worker over several hosts: which algorithm for which size, as `tutti bench "
              "tune` wrote it; the same on all hosts");
}

// Whether the loss of a worker is not the end of the others.
bool goes_on(const JobFlags& flags) {
  const ServedOptions served = served_options(flags.served);
  return !served.staleness.synchronous() || served.on_lost_worker != ps::OnLostWorker::end;
}

// Out of step the chief does what there is to do at the end; in step whoever came to it knows that
// somebody has (Strategy::by_chief), also when one was lost on its way out.
bool done_without_the_lost(const JobFlags& flags, const LaunchResult& result) {
  const auto succeeded = [](const WorkerResult& worker) { return !worker.failed(); };
  if (served_options(flags.served).staleness.synchronous())
    return std::ranges::any_of(result.workers, succeeded);
  return !result.workers.empty() && succeeded(result.workers.front());
}

// Within a launcher the servers are there already.
void check_servers(const JobFlags& flags) {
  if (!flags.uses_servers() || starts_workers(flags)) return;
  const int there = detail::served_place().num_servers;
  if (flags.served.servers && flags.served.num_servers() != there)
    throw UsageError(
        fmt::format("--servers {}: the launcher of this job said {}; leave it out here",
                    flags.served.num_servers(), there));
  if (!behind_a_launcher()) return;
  for (const std::string& typed : flags.typed)
    if (const auto flag = std::string_view(typed).substr(0, typed.find(' '));
        flag != "--servers" &&  // that it says the same was seen above
        std::ranges::count(kFlagsOfServers, flag) > 0)
      throw UsageError(
          fmt::format("{}: this job's servers are its launcher's; say it there: tutti run "
                      "--servers {} {} ...",
                      typed, there, typed));
}

// Before workers start. Within a launcher, each knows by its Strategy alone which devices it has.
void check_devices(const JobFlags& flags, int replicas) {
  if (starts_workers(flags))
    check_placement_on(flags.devices, 1, num_workers_of(flags));
  else if (flags.strategy == "mirrored" || flags.strategy == "central_storage")
    check_placement_on(flags.devices, replicas, 1);
}

}  // namespace

void add_job_flags(Command& command, JobFlags& flags, std::vector<std::string> extra_strategies) {
  std::vector<std::string> strategies = strategy_kinds();
  strategies.insert(strategies.end(), extra_strategies.begin(), extra_strategies.end());
  command.group = "Data";
  command.add("--data", "DIR", &flags.data, "Folder of doodles: one .npy or .npy.gz file a class")
      .required = true;
  command
      .add("--seed", "S", &flags.seed, whole_number(0, std::numeric_limits<int64_t>::max()),
           "Of initial weights, order of samples and dropout")
      .preset = "0";
  command
      .add("--batch-size", "GLOBAL", &flags.global_batch, whole_number(1, int64_t{1} << 31),
           "Samples of a step, over all replicas")
      .also = {"--batch"};
  add_optimizer_flags(command, flags.optimizer);
  add_strategy_flags(command, flags, std::move(strategies));
  add_reduction_flags(command, flags);
  add_server_flags(command, flags.served);
  command.group = "Options";
}

bool are_processes(const JobFlags& flags) {
  return flags.strategy == "multi_worker" || flags.strategy == "independent" ||
         flags.uses_servers();
}

bool starts_workers(const JobFlags& flags) {
  return are_processes(flags) && !job_of_this_process();
}

bool behind_a_launcher() {
  const char* const own = std::getenv(detail::kOwnCommandVariable);
  return job_of_this_process() && (own == nullptr || *own == '\0');
}

int workers_of_job(const JobFlags& flags) {
  if (const auto job = job_of_this_process()) return job->num_workers;
  return starts_workers(flags) ? num_workers_of(flags) : 1;
}

static mesh::Mesh mesh_of(const JobFlags& flags) {
  return mesh::Mesh::parse(flags.mesh, static_cast<int>(flags.replicas.value_or(0)));
}

int num_workers_of(const JobFlags& flags) {
  if (!flags.mesh.empty()) return mesh_of(flags).replicas();
  return flags.replicas ? static_cast<int>(*flags.replicas) : replicas_of_host(flags.devices);
}

std::vector<std::string> own_command() {
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  const std::string all{std::istreambuf_iterator<char>(file), {}};
  std::vector<std::string> words;
  for (size_t at = 0; at < all.size();) {
    const size_t end = std::min(all.find('\0', at), all.size());
    words.push_back(all.substr(at, end - at));
    at = end + 1;
  }
  return words;
}

int run_as_workers(const std::string& name, const JobFlags& flags, int num_workers,
                   std::vector<std::string> environment) {
  LaunchOptions options{
      .num_workers = num_workers, .command = own_command(), .environment = std::move(environment)};
  options.command.at(0) = std::filesystem::read_symlink("/proc/self/exe").string();
  options.environment.push_back(std::string(detail::kOwnCommandVariable) + "=1");
  options.signal_grace = millis_of(flags.grace_s.value_or(kGraceSeconds));
  std::optional<ServerFleet> fleet;
  if (flags.uses_servers()) {
    fleet.emplace(FleetOptions{.num_servers = flags.served.num_servers(),
                               .num_workers = num_workers,
                               .backups = flags.served.backups,
                               .silence = silence_for(flags.time_limit_s),
                               .snapshots = snapshot_options(flags.served.snapshots),
                               .order = order_options(flags.served.order, flags.served.snapshots)},
                  options);
    options.end_on_failure = !goes_on(flags);
    options.restarts = static_cast<int>(flags.served.restarts);
  }
  const LaunchResult result = launch(options);
  std::istringstream report(failure_report(result));
  for (std::string line; std::getline(report, line);)
    say_to(stderr, "{}{}\n", line.starts_with("  ") ? "" : "tutti " + name + ": ", line);
  const int code =
      !options.end_on_failure && done_without_the_lost(flags, result) ? 0 : result.exit_code;
  if (fleet) fleet->end(code != 0);
  return code;
}

int num_replicas_of(const JobFlags& flags) {
  return flags.mesh.empty() ? num_ranks_of(flags) : mesh_of(flags).data_replicas();
}

int num_ranks_of(const JobFlags& flags) {
  if (!flags.mesh.empty()) return mesh_of(flags).replicas();
  if (!flags.reduction_shape.empty() && flags.strategy == "one_device")
    return ReductionShape::parse(flags.reduction_shape).replicas();
  if (flags.strategy == "one_device") return static_cast<int>(flags.replicas.value_or(1));
  const auto launcher = job_of_this_process();
  if (flags.strategy == "tpu")
    return static_cast<int>(flags.replicas.value_or(launcher ? launcher->num_workers : 1));
  if (flags.replicas.value_or(1) > kMostAtOnce)
    throw UsageError(fmt::format("--replicas {}: expected a whole number, 1 to {}, under {}",
                                 *flags.replicas, kMostAtOnce, flags.strategy));
  if (flags.replicas) return static_cast<int>(*flags.replicas);
  if (flags.strategy != "mirrored" && flags.strategy != "central_storage" && launcher)
    return launcher->num_workers;
  return num_workers_of(flags);
}

StrategyOptions strategy_options(const JobFlags& flags, const FitFacts& fit) {
  StrategyOptions options;
  options.typed = flags.typed;
  take_devices(flags.devices, options);
  if (!flags.dense_kernel.empty())
    nn::use_dense_kernel(nn::dense_kernel_by_name(flags.dense_kernel));
  options.kind = flags.strategy;
  options.replicas = static_cast<int>(flags.replicas.value_or(0));
  options.reduction_shape = flags.reduction_shape;
  options.mesh = flags.mesh;
  options.shard = flags.shard;
  if (!flags.shares.empty()) take_shares(flags.shares, options);
  options.tensor_blocks = static_cast<int>(flags.tensor_blocks.value_or(0));
  options.threads_per_replica = static_cast<int>(flags.threads.value_or(0));
  options.time_limit = millis_of(flags.time_limit_s);
  options.seed = flags.seed;
  options.reduction = flags.reduction;
  options.engine = flags.engine;
  options.sum_order = flags.sum_order == "any" ? Order::any : Order::fixed;
  options.communication.implementation = flags.communication;
  const auto typed_order = [](std::string_view word) { return word.starts_with("--sum-order "); };
  if (std::ranges::any_of(flags.typed, typed_order))
    options.communication.order = options.sum_order;
  options.compression = compression_from(flags.compression);
  options.compression.start_step = flags.compression_start;
  options.compression.seed = flags.seed;
  if (!flags.table.empty() && flags.strategy == "multi_worker")
    options.table = load_table(flags.table);
  if (flags.local_steps) {
    options.local = flags.local;
    options.local->every = *flags.local_steps;
  }
  options.served = served_options(flags.served);
  options.piece_bytes = static_cast<int64_t>(std::ceil(flags.piece_mib * (1 << 20)));
  const RecipeFacts recipe = optimizer_facts(flags.optimizer);
  const int replicas = num_replicas_of(flags);
  if (!flags.reduction_shape.empty() && flags.strategy == "one_device" && flags.mesh.empty() &&
      flags.replicas && *flags.replicas != replicas)
    throw UsageError(fmt::format("--reduction-shape {} is for {} replicas, but --replicas is {}",
                                 flags.reduction_shape, replicas, *flags.replicas));
  if (flags.strategy == "independent") {
    require_together(options, recipe, fit, machine_of(flags));
  } else {
    check_launched(options);
    choose(options, recipe, fit, machine_of(flags));
  }
  check_devices(flags, num_ranks_of(flags));
  check_servers(flags);
  return options;
}

}  // namespace tutti::cli
