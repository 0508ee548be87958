// Groups for the memory of devices in several processes: whether there can be any, and they.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "tutti/base/error.h"
#include "tutti/base/host.h"
#include "tutti/base/json.h"
#include "tutti/base/typed.h"
#include "tutti/comm/engine/engine_meeting.h"
#include "tutti/comm/nccl/nccl_hier.h"
#include "tutti/net/host_meeting.h"
#include "tutti/strategy/membership/detail/worlds.h"

namespace tutti::detail {
namespace {

std::string words_of(const DeviceGroupsChoice& choice) {
  return fmt::format("--engine {} --sum-order {}", choice.engine,
                     choice.order == Order::any ? "any" : "fixed");
}

RankOnGpu facts_of(const DeviceQueue& queue, const DeviceGroupsChoice& choice) {
  RankOnGpu facts{.on_gpu = queue.on_device(),
                  .has_nccl = nccl_available(),
                  .machine = choice.machine.empty() ? boot_id() : choice.machine,
                  .process = process_words(),
                  .sums = words_of(choice)};
  if (!facts.on_gpu || !facts.has_nccl) return facts;
  const NcclFacts known = nccl_facts(queue.device().index());
  facts.nccl = known.version;
  facts.cuda = known.cuda;
  facts.gpu = known.gpu;
  return facts;
}

Json json_of(const RankOnGpu& facts) {
  return Json::array({facts.on_gpu, facts.has_nccl, facts.nccl, facts.cuda, facts.machine,
                      facts.gpu, facts.process, facts.sums});
}

RankOnGpu facts_from(const Json& read) {
  return {.on_gpu = read[0],
          .has_nccl = read[1],
          .nccl = read[2],
          .cuda = read[3],
          .machine = read[4],
          .gpu = read[5],
          .process = read[6],
          .sums = read[7]};
}

std::string versions_of(const RankOnGpu& rank) {
  return fmt::format("NCCL {} with CUDA {}.{} on {}", rank.nccl, rank.cuda / 1000,
                     rank.cuda % 1000 / 10, rank.process);
}

// From 2.32 on NCCL lets ranks of a group share a GPU where NCCL_MULTI_RANK_GPU_ENABLE is set, and
// says so itself where it is not.
bool may_share_a_gpu(const std::string& version) {
  const auto parts = parts_of(version, '.');
  const auto part = [&](size_t i) {
    return i < parts.size() ? number_in<int>(parts[i]).value_or(0) : 0;
  };
  return std::pair(part(0), part(1)) >= std::pair(2, 32);
}

// A group's engine, alive as long as it is used.
std::shared_ptr<Engine> engine_of(const Group& group) {
  const auto kept = std::make_shared<Group>(group);
  return {kept, &kept->engine()};
}

std::vector<RankOnGpu> tell_each_other(const World& world, const DeviceGroupsChoice& choice) {
  Json own = Json::array();
  const std::vector<DeviceQueue> nowhere(static_cast<size_t>(world.local));
  for (const DeviceQueue& queue : world.on_devices() ? world.queues : nowhere)
    own.push_back(json_of(facts_of(queue, choice)));
  std::vector<RankOnGpu> all;
  for (const auto& [worker, words] : Membership(world).words_of_all(dump_json(own)))
    for (const Json& facts : parse_json(words)) all.push_back(facts_from(facts));
  return all;
}

Group nccl_group(World& world, int local) {
  const auto place = static_cast<size_t>(local);
  std::vector<int> owners;  // of equal slices: the replicas of that number
  for (int rank = local; rank < world.size; rank += world.local) owners.push_back(rank);
  EngineMeeting meeting(engine_of(world.groups[place]), owners);
  return Group(make_nccl(meeting, {.device = world.queues[place].device().index(),
                                   .limit = world.time_limit}),
               fmt::format("devices{}", local));
}

// Rails are groups that the hosts' group splits off, so of whatever engine fits between hosts.
Group hier_group(World& world, int local, const std::vector<RankOnGpu>& ranks) {
  const auto place = static_cast<size_t>(local);
  const auto hosts = owners_by_host(ranks, world.local, local);
  const int rank = world.first_rank + local;
  const auto here = std::ranges::find_if(
      hosts, [&](const auto& owners) { return std::ranges::find(owners, rank) != owners.end(); });
  const auto inside = std::ranges::find(*here, rank) - here->begin();
  const int slices = static_cast<int>(here->size());
  const auto rail =
      world.groups[place].split(local * slices + static_cast<int>(inside), rank, world.time_limit);
  const auto hosts_engine = engine_of(world.groups[place]);
  EngineMeeting meeting(hosts_engine, *here);
  NcclHierParts parts{.rank = world.process(),
                      .size = world.processes(),
                      .inside = &meeting,
                      .rail = engine_of(*rail),
                      .look = [hosts_engine] { hosts_engine->nudge(); }};
  return Group(make_nccl_hier(std::move(parts), {.device = world.queues[place].device().index(),
                                                 .limit = world.time_limit}),
               fmt::format("devices{}", local));
}

}  // namespace

std::vector<std::vector<int>> owners_by_host(const std::vector<RankOnGpu>& ranks, int local,
                                             int number) {
  std::vector<std::vector<int>> hosts;
  for (int rank = number; rank < static_cast<int>(ranks.size()); rank += local) {
    const auto& machine = ranks[static_cast<size_t>(rank)].machine;
    const auto known = std::ranges::find_if(hosts, [&](const auto& owners) {
      return ranks[static_cast<size_t>(owners[0])].machine == machine;
    });
    if (known == hosts.end())
      hosts.push_back({rank});
    else
      known->push_back(rank);
  }
  if (hosts.size() == 1)
    throw UsageError(
        "engine hier: all processes are on one host, where NCCL adds up alone; leave --engine out");
  std::vector<size_t> counts;
  for (const auto& owners : hosts) counts.push_back(owners.size());
  if (std::ranges::count(counts, counts[0]) != std::ssize(counts))
    throw UsageError(
        fmt::format("engine hier: the hosts have {} processes; expected as many on each, since "
                    "each has a partner on every host; leave --engine out",
                    fmt::join(counts, "+")));
  return hosts;
}

std::string objection_to_nccl(const std::vector<RankOnGpu>& ranks, int local) {
  for (size_t r = 0; r < ranks.size(); ++r) {
    if (!ranks[r].on_gpu) return fmt::format("replica {} computes on the CPU", r);
    if (!ranks[r].has_nccl)
      return fmt::format("replicas are in several processes, and tutti was built without NCCL{}",
                         ranks[0].has_nccl ? " in " + ranks[r].process : "");
  }
  for (const RankOnGpu& rank : ranks)
    if (rank.sums != ranks[0].sums)
      throw Mismatch(fmt::format("{} was started with {}, {} with {}; start all alike",
                                 ranks[0].process, ranks[0].sums, rank.process, rank.sums));
  for (size_t r = 1; r < ranks.size(); ++r)
    if (ranks[r].nccl != ranks[0].nccl || ranks[r].cuda != ranks[0].cuda)
      throw Mismatch(
          fmt::format("replicas 0 and {} cannot add up their gradients: {}, {}\n  install the same "
                      "versions on all hosts",
                      r, versions_of(ranks[0]), versions_of(ranks[r])));
  for (size_t r = 1; r < ranks.size(); ++r)
    for (size_t other = 0; other < r; ++other) {
      if (ranks[r].machine != ranks[other].machine || ranks[r].gpu != ranks[other].gpu) continue;
      const bool same_group = (r - other) % static_cast<size_t>(local) == 0;
      if (same_group && may_share_a_gpu(ranks[r].nccl)) continue;
      return fmt::format("replicas {} and {} share GPU {} ({}), which {}", other, r, ranks[r].gpu,
                         ranks[r].process,
                         same_group ? fmt::format("NCCL {} refuses (2.32 does not)", ranks[r].nccl)
                                    : "several processes' groups cannot");
    }
  return "";
}

void make_device_groups(World& world, const DeviceGroupsChoice& choice) {
  const bool hier = choice.engine == "hier";
  const auto ranks = tell_each_other(world, choice);
  world.no_device_groups = objection_to_nccl(ranks, world.local);
  if (hier && !world.no_device_groups.empty())
    throw UsageError(fmt::format(
        "engine hier adds up on GPUs, by NCCL inside each host: {}; leave --engine out, "
        "and gradients go by way of the CPU",
        world.no_device_groups));
  if (choice.named == "nccl" && !world.no_device_groups.empty())
    throw UsageError(
        fmt::format("--communication nccl: {}; take auto, and gradients go by way of the CPU",
                    world.no_device_groups));
  if (!world.no_device_groups.empty()) return;
  if (hier) owners_by_host(ranks, world.local, 0);
  std::vector<Group> groups(static_cast<size_t>(world.local));
  for_each_local(world, [&](int local) {
    groups[static_cast<size_t>(local)] = hier && choice.order == Order::any
                                             ? hier_group(world, local, ranks)
                                             : nccl_group(world, local);
  });
  world.device_groups = std::move(groups);
}

void add_up_on_devices(World& world, StrategyOptions& options) {
  const std::string implementation = options.communication.implementation;
  const std::optional<Order> order = options.communication.order;
  if (order) options.sum_order = *order;
  if (implementation == "hier") options.engine = "hier";
  make_device_groups(
      world, {.engine = options.engine, .order = options.sum_order, .named = implementation});
  if (world.device_groups.empty()) return;
  options.communication.chosen = {
      .asked = implementation,
      .engine = std::string(world.device_groups[0].engine().name()),
      .why = implementation == "auto" ? "the replicas compute on GPUs" : "it was asked for",
      .order = options.sum_order};
}

}  // namespace tutti::detail
