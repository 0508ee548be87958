#include "tutti/strategy/membership/detail/worlds.h"

#include <algorithm>
#include <cstdlib>

#include "tutti/base/error.h"
#include "tutti/base/host.h"
#include "tutti/base/log.h"
#include "tutti/base/typed.h"
#include "tutti/cluster/join/join.h"
#include "tutti/cluster/spec/detail/environment.h"
#include "tutti/cluster/spec/tpu_resolver.h"
#include "tutti/comm/group/host_view.h"
#include "tutti/comm/shm/shm.h"
#include "tutti/pjrt/client.h"
#include "tutti/queues/config.h"
#include "tutti/strategy/membership/detail/agreement.h"

namespace tutti::detail {

int threads_for(const StrategyOptions& options, int replicas_on_host) {
  if (options.threads_per_replica > 0) return options.threads_per_replica;
  return std::max(1, host_facts().usable_cores / replicas_on_host);
}

// Under a quota of the cgroup all containers of a host see the same first cores: pinned, they would
// share them while others idle.
bool can_pin(const StrategyOptions& options, int replicas_on_host, int threads) {
  const int64_t cores = host_facts().usable_cores;
  return options.pin && replicas_on_host > 1 && int64_t{replicas_on_host} * threads <= cores &&
         cores == static_cast<int64_t>(host_facts().cores.size());
}

namespace {

std::string launcher_hint(int replicas) {
  return fmt::format("start it with: tutti run -n {} PROGRAM ARGS...", std::max(replicas, 2));
}

// The replicas take turns, and this device has all stages and blocks of each.
World one_device_world(StrategyOptions& options, const mesh::Mesh& mesh) {
  const int replicas = options.mesh.empty() ? options.replicas : mesh.data_replicas();
  World world;
  world.shape = options.reduction_shape.empty() ? ReductionShape::flat(std::max(1, replicas))
                                                : ReductionShape::parse(options.reduction_shape);
  if (replicas != 0 && replicas != world.shape.replicas())
    throw UsageError(fmt::format("reduction shape {} is for {} replicas, but replicas is {}",
                                 options.reduction_shape, world.shape.replicas(), replicas));
  world.size = world.local = world.here = world.shape.replicas();
  if (options.mesh.empty()) options.replicas = world.size;
  return world;
}

World mirrored_world(StrategyOptions& options, size_t devices = 0) {
  if (options.replicas == 0)
    options.replicas = devices > 0 ? static_cast<int>(devices) : host_facts().usable_cores;
  World world;
  world.size = world.local = world.here = options.replicas;
  const bool pinned = can_pin(options, world.size, threads_for(options, world.size));
  for (auto& engine : make_shm_threads(world.size, {.pinned = pinned}))
    world.groups.emplace_back(std::move(engine));
  world.shape = world.groups[0].reduction_shape();
  options.communication.chosen = {
      .asked = options.communication.implementation,
      .engine = std::string(world.groups[0].engine().name()),
      .why = world.size == 1
                 ? "there is one replica, which sends nothing"
                 : fmt::format("all {} replicas are threads of one process", world.size)};
  return world;
}

/// Replicas on this host, as far as it is known before they have met.
int replicas_here(const ClusterSpec& job, int replicas) {
  return replicas / job.num_workers * job.num_local_workers.value_or(job.num_workers);
}

// Ranks of a host that have no memory in common share its cores all the same.
void take_place_on_host(World& world, const ClusterSpec& job) {
  const HostView view = host_view(world.groups[0]);
  world.here = view.inside.size();
  world.first_rank_here = view.inside.rank();
  if (world.here > 1 || !job.num_local_workers || !job.local_worker) return;
  world.here = *job.num_local_workers * world.local;
  world.first_rank_here = *job.local_worker * world.local;
}

void require_divides(int replicas, int workers) {
  if (replicas % workers != 0)
    throw UsageError(
        fmt::format("{} replicas over {} workers: the number of workers must divide the "
                    "number of replicas",
                    replicas, workers));
}

// Connections are between processes: replicas of one would have them to each other.
void require_one_each(const CommunicationPlan& plan, const StrategyOptions& options, int local) {
  if (local == 1 || (plan.engine != "tcp" && plan.engine != "mpi")) return;
  throw UsageError(
      fmt::format("--communication {}: each worker has {} replicas, which share its memory; "
                  "expected one a worker (--replicas {}), or auto, shm or hier",
                  options.communication.implementation, local, options.replicas / local));
}

// On GPUs NCCL adds up, and the host's group carries what else there is to tell.
CommunicationPlan plan_for(const StrategyOptions& options, bool on_gpus) {
  CommunicationPlan plan = plan_of(options.communication, options.table);
  if (on_gpus || plan.engine == "nccl") plan.engine = "auto";
  return plan;
}

World multi_worker_world(StrategyOptions& options, bool on_gpus = false) {
  const auto job = job_of_this_process();
  if (!job)
    throw UsageError("strategy multi_worker outside a launcher; " +
                     launcher_hint(options.replicas));
  const int workers = job->num_workers;
  if (options.replicas == 0) options.replicas = workers;
  require_divides(options.replicas, workers);
  World world;
  world.size = options.replicas;
  world.local = world.size / workers;
  const int here = replicas_here(*job, world.size);
  const bool pinned = can_pin(options, here, threads_for(options, here));
  require_same_communication(options);
  const CommunicationPlan plan = plan_for(options, on_gpus);
  require_one_each(plan, options, world.local);
  EngineChoice chosen;
  world.groups = join_replicas(world.local, {.limit = options.time_limit,
                                             .pinned = pinned,
                                             .engine = plan.engine,
                                             .order = plan.order,
                                             .table = plan.table,
                                             .chosen = &chosen});
  const bool in_memory = chosen.engine == "shm" || chosen.engine == "solo";
  options.communication.chosen = {.asked = options.communication.implementation,
                                  .engine = std::string(world.groups[0].engine().name()),
                                  .algorithm = chosen.engine == "tcp" ? plan.algorithm : "",
                                  .why = chosen.reason,
                                  .order = in_memory ? Order::fixed : plan.order};
  world.first_rank = world.groups[0].rank();
  world.chief = world.first_rank == 0;
  world.shape = world.groups[0].reduction_shape();
  take_place_on_host(world, *job);
  return world;
}

/// The same number of threads everywhere: results depend on it. It is that of the fullest host, or
/// of the worker that may use the fewest cores.
int common_threads(const StrategyOptions& options, const Membership& members) {
  const int threads = threads_for(options, members.topology().here);
  return members.in_step() ? std::ranges::min(members.all_of(threads)) : threads;
}

// As they would be in a group over all workers: launchers start as many workers on each host.
ReductionShape shape_over_hosts(const std::optional<ClusterSpec>& job, int replicas) {
  const int here = job ? replicas_here(*job, replicas) : replicas;
  if (here == replicas) return ReductionShape::flat(replicas);
  return ReductionShape::hosts(std::vector<int>(replicas / here, here));
}

// Each process drives its devices, each of which is a replica, as it does replicas in turn; those
// of several meet as workers do.
World plugin_world(StrategyOptions& options) {
  const cluster::TpuResolver resolver(options.plugin.empty() ? "local" : options.plugin);
  options.plugin = resolver.plugin();
  options.pin = false;
  const auto client = std::make_shared<const pjrt::Client>(open_plugin(options, resolver));
  const int processes = processes_of(options, resolver), here = client->num_devices();
  if (processes == 1 && options.replicas > here)
    throw UsageError(fmt::format("--replicas {}: {} has {}; each replica is one", options.replicas,
                                 pjrt::words_of(client->facts()), here));
  if (options.replicas == 0) options.replicas = here * processes;
  World world;
  if (processes > 1) {
    require_all_devices(options, *client, processes);
    world = multi_worker_world(options);
  } else {
    world.size = world.local = world.here = options.replicas;
    world.shape = ReductionShape::flat(world.size);
  }
  world.plugin = client;
  return world;
}

// Replicas of several workers are in sync only where no gradient may be stale.
World parameter_server_world(StrategyOptions& options) {
  const ServedPlace place = served_place();
  const bool in_sync = options.served.staleness.synchronous() && place.num_workers > 1;
  if (in_sync && options.served.on_lost_worker == ps::OnLostWorker::end)
    return multi_worker_world(options);
  const int replicas = std::max(options.replicas, place.num_workers);
  require_divides(replicas, place.num_workers);
  options.replicas = replicas / place.num_workers;
  World world = mirrored_world(options);
  world.chief = place.worker == 0;
  // The others compute on this host's cores too; a coordinator waits for them, as a rule.
  const auto job = job_of_this_process();
  const int idle = place.coordinated ? 1 : 0;
  if (job) world.here = std::max(world.local, replicas_here(*job, replicas) - idle * world.local);
  const int number = job ? job->local_worker.value_or(place.worker) : 0;
  world.first_rank_here = std::max(0, number - idle) * world.local;
  if (in_sync) {
    world.apart = true;
    world.size = options.replicas = replicas;
    world.first_rank = place.worker * world.local;
    world.shape = shape_over_hosts(job, replicas);
  }
  return world;
}

// Ranks of a replica are neighbours, whole replicas or equal parts of one on each worker.
void require_even(const mesh::Mesh& mesh, const World& world) {
  const int ranks = mesh.model_ranks();
  if (world.local % ranks != 0 && ranks % world.local != 0)
    throw UsageError(fmt::format(
        "--mesh {}: {} ranks a worker, {} a replica; expected that one divides the other",
        mesh.to_string(), world.local, ranks));
}

// Errors of a group count its ranks from 0.
std::string members_in_words(const mesh::Mesh& mesh, int rank,
                             const std::vector<mesh::Axis>& axes) {
  std::vector<std::string> words;
  for (const int member : mesh.members(rank, axes))
    words.push_back(fmt::format("{} is rank {}", words.size(), member));
  return fmt::format("on axis {} of the mesh, where {}", mesh::name_of(axes[0]),
                     fmt::join(words, ", "));
}

// Collective: each rank gets its groups.
void join_mesh_groups(World& world) {
  world.mesh_groups.resize(static_cast<size_t>(world.local));
  detail::for_each_local(world, [&](int local) {
    const auto number = static_cast<size_t>(local);
    const int rank = world.first_rank + local;
    const mesh::Place place = world.mesh.place_of(rank);
    const auto split = [&](const std::vector<mesh::Axis>& axes) {
      mesh::Place first = place;
      int members = 1;
      for (const mesh::Axis axis : axes) {
        first[static_cast<size_t>(axis)] = 0;
        members *= world.mesh.size(axis);
      }
      if (members == 1) return Group();
      const Group group =
          *world.groups[number].split(world.mesh.rank_at(first), rank, world.time_limit);
      group.say_members(members_in_words(world.mesh, rank, axes));
      return group;
    };
    using mesh::Axis;
    world.mesh_groups[number] = {.data = split({Axis::data, Axis::shard}),
                                 .stage = split({Axis::stage}),
                                 .tensor = split({Axis::tensor})};
  });
}

void deal_out(World& world, const mesh::Mesh& mesh) {
  world.mesh = mesh;
  if (mesh.model_ranks() == 1) return;
  require_even(mesh, world);
  join_mesh_groups(world);
}

mesh::Mesh mesh_of(StrategyOptions& options) {
  const mesh::Mesh mesh = mesh::Mesh::parse(options.mesh, options.replicas);
  if (!options.mesh.empty()) options.replicas = mesh.replicas();
  options.tensor_blocks = std::max(options.tensor_blocks, mesh.size(mesh::Axis::tensor));
  return mesh;
}

}  // namespace

void require_same_data(const Membership& members, std::string_view operation, std::string_view what,
                       const data::Dataset& dataset, uint64_t seed) {
  if (!members.in_step()) return;
  AgreedLines lines;
  add_shape(lines, what, dataset);
  add_digest(lines, what, dataset, seed);
  members.require_same(operation, lines.text());
}

// Before anything is done by them. Workers that meet at servers alone tell these.
// Who names devices may name others than the next worker; what "auto" finds has to be alike.
static void require_same_options(const Membership& members, std::string words,
                                 const StrategyOptions& options, bool on_gpus) {
  if (!members.in_step()) return;
  if (members.anybody(options.device == "auto"))
    words = fmt::format("devices: {}\n", on_gpus ? "GPUs" : "the CPU") + words;
  members.require_same("strategy", words);
}

World make_world(StrategyOptions& options) {
  mesh::Mesh mesh = mesh_of(options);
  const auto devices = devices_from(options.device);
  const bool elsewhere = devices != std::vector<DeviceSpec>(1);
  const bool on_gpus = std::ranges::any_of(
      devices, [](const DeviceSpec& device) { return device.kind == DeviceKind::cuda; });
  const CommunicationOptions& communication = options.communication;
  options.communication.chosen = {};
  if (communication.timeout > Millis{0}) options.time_limit = communication.timeout;
  if (elsewhere) options.pin = false;  // a replica's thread only queues work for its device
  World world = options.kind == "one_device"     ? one_device_world(options, mesh)
                : options.kind == "multi_worker" ? multi_worker_world(options, on_gpus)
                : options.uses_servers()         ? parameter_server_world(options)
                : options.is_compiled()          ? plugin_world(options)
                                        : mirrored_world(options, elsewhere ? devices.size() : 0);
  if (options.uses_servers())
    options.communication.chosen = {.why = "gradients go to parameter servers"};
  if (options.is_compiled())
    options.communication.chosen = {.why =
                                        "a plugin compiles whole steps, with what they exchange"};
  world.time_limit = options.time_limit;
  world.piece_bytes = std::max(options.piece_bytes, communication.bytes_per_pack);
  world.asked = strategy_words(options, options.replicas);
  const Membership members(world);
  require_same_options(members, world.asked, options, on_gpus);
  for (Group& group : world.groups) group.set_time_limit(options.time_limit);  // of users too
  world.tensor_blocks = options.tensor_blocks;
  world.shares = options.shares;
  options.threads_per_replica = common_threads(options, members);
  place_on_devices(world, options, devices);
  require_together(options, {}, {}, {.gpus = world.on_devices()});
  if (options.mesh.empty() || options.kind == "one_device") mesh = mesh::Mesh(world.size);
  deal_out(world, mesh);
  if (!world.shares.empty() && static_cast<int>(world.shares.size()) != world.num_replicas())
    throw UsageError(
        fmt::format("{} shares for {} replicas; give one each, or none for equal shares",
                    world.shares.size(), world.num_replicas()));
  if (options.kind == "multi_worker" && members.in_step() && members.anybody(world.on_devices()))
    add_up_on_devices(world, options);
  else
    require_together(options, {}, {}, {.nccl = false});
  if (world.chief && world.size > 1)
    log(LogLevel::info, "communication ({}): {}", communication.chosen.asked,
        sentence_of(communication.chosen));
  return world;
}

namespace {

std::vector<double> server_weights() {
  const char* const text = std::getenv(kServerWeightsVariable);
  std::vector<double> weights;
  if (text == nullptr || *text == '\0') return weights;
  for (const std::string_view part : parts_of(text, ',')) {
    const auto weight = number_in<double>(part);
    if (!weight)
      throw UsageError(fmt::format("{}={}: expected numbers like 0.25,0.75, as `tutti run` sets it",
                                   kServerWeightsVariable, text));
    weights.push_back(*weight);
  }
  return weights;
}

// `otherwise` where the variable is unset.
int64_t number_of_launcher(const char* variable, std::string_view what, int64_t least, int64_t most,
                           int64_t otherwise) {
  const char* const text = std::getenv(variable);
  if (text == nullptr || *text == '\0') return otherwise;
  const auto number = number_in<int64_t>(text);
  if (!number || *number < least || *number > most)
    throw UsageError(fmt::format("{}={}: expected {}, {} to {}, as `tutti run` sets it", variable,
                                 text, what, least, most));
  return *number;
}

}  // namespace

Machine machine_here(const StrategyOptions& options) {
  Machine machine;
  if (!options.uses_servers()) return machine;
  if (const auto job = job_of_this_process()) machine.workers = job->num_workers;
  machine.coordinated = std::getenv(kCoordinatorVariable) != nullptr;
  if (const char* const folder = std::getenv(kSnapshotsVariable)) machine.snapshots = folder;
  return machine;
}

ServedPlace served_place() {
  const char* const service = std::getenv(kViewServiceVariable);
  const char* const servers = std::getenv(kNumServersVariable);
  if (service == nullptr || servers == nullptr)
    throw UsageError(
        "strategy parameter_server without servers; start it with: tutti run --servers 1 -n 2 "
        "PROGRAM ARGS...");
  ServedPlace place;
  place.view_service = parse_host_port(service, kViewServiceVariable);
  place.num_servers = number_in<int>(servers).value_or(0);
  if (place.num_servers < 1)
    throw UsageError(fmt::format("{}={}: expected a number from 1 on, as `tutti run` sets it",
                                 kNumServersVariable, servers));
  if (const auto job = job_of_this_process()) {
    place.worker = job->worker;
    place.num_workers = job->num_workers;
  }
  place.server_weights = server_weights();
  place.poll =
      std::chrono::microseconds(number_of_launcher(kPollVariable, "microseconds", 0, 1'000'000, 0));
  place.piece_bytes =
      number_of_launcher(kPieceBytesVariable, "bytes", 1, 1 << 30, place.piece_bytes);
  place.coordinated = std::getenv(kCoordinatorVariable) != nullptr;
  return place;
}

}  // namespace tutti::detail
