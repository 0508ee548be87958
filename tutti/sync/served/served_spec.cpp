#include "tutti/sync/served/detail/served_spec.h"

#include <fmt/format.h>

#include <cstdlib>
#include <filesystem>

#include "tutti/base/error.h"
#include "tutti/cluster/spec/detail/environment.h"
#include "tutti/ps/snapshot/snapshot.h"
#include "tutti/sync/served/detail/host_exchange.h"

namespace tutti::detail {
namespace {

std::vector<ps::Variable> variables_of(const Slots& layout) {
  std::vector<ps::Variable> variables;
  for (const ParameterSlot& slot : layout.slots)
    variables.push_back({slot.name, slot.shape, slot.dtype});
  return variables;
}

// What the launcher was told by --restore; "": the job begins anew.
std::filesystem::path restored_snapshot() {
  const char* const path = std::getenv(kRestoreVariable);
  return path == nullptr ? "" : path;
}

// Replicas that are not in sync with other workers' count as those of a host of their own.
ReductionShape shape_of_all(const mesh::Topology& topology, const ServedPlace& place,
                            const ServedOptions& options) {
  if (options.staleness.synchronous()) return topology.shape;
  return ReductionShape::hosts(std::vector<int>(place.num_workers, topology.local));
}

bool has_host_sums(const World& world, const ServedPlace& place, const ServedOptions& options) {
  return options.host_sums && options.staleness.synchronous() && options.drop_slowest == 0 &&
         options.stop_if_not_finite && HostExchange::possible(world, place.num_workers);
}

}  // namespace

ps::Spec served_spec(const World& world, const optim::Rule& rule, const Slots& layout,
                     const ServedPlace& place, const ServedOptions& options,
                     std::vector<ps::SparseTableSpec> tables) {
  ps::Spec spec{.rule = rule};
  spec.tables = std::move(tables);
  spec.variables = variables_of(layout);
  ps::PlacementOptions placement = options.placement;
  placement.num_servers = place.num_servers;
  if (placement.weights.empty() && placement.how == ps::PlacementOptions::How::greedy)
    placement.weights = place.server_weights;
  spec.pieces =
      ps::pieces_of(spec.variables, ps::place(spec.variables, placement), place.piece_bytes);
  spec.num_partitions = place.num_servers;
  spec.staleness = options.staleness;
  spec.num_workers = place.num_workers;
  spec.shape = shape_of_all(world, place, options);
  spec.drop_slowest = options.drop_slowest;
  spec.on_lost_worker = options.on_lost_worker;
  spec.scale_by_staleness = options.scale_by_staleness;
  spec.delay_compensation = options.delay_compensation;
  spec.stop_if_not_finite = options.stop_if_not_finite;
  spec.host_sums = has_host_sums(world, place, options);
  spec.goes_on_from = restored_snapshot().filename().string();
  ps::check(spec);
  return spec;
}

std::shared_ptr<const ps::UpdateOrder> replayed_order(const ps::Spec& spec, bool coordinated) {
  const auto path_of = [](const char* name) {
    const char* const path = std::getenv(name);
    return std::string(path == nullptr ? "" : path);
  };
  const std::string replayed = path_of(kReplayOrderVariable);
  if (replayed.empty() && path_of(kRecordOrderVariable).empty()) return nullptr;
  const char* const flag = replayed.empty() ? "--record-order" : "--replay-order";
  std::string why = ps::objection_to_order(spec, flag);
  if (coordinated)
    why = fmt::format("{} with --coordinator: steps go to whichever worker is free", flag);
  if (!why.empty()) throw UsageError(why);
  if (replayed.empty()) return nullptr;
  auto order = std::make_shared<const ps::UpdateOrder>(ps::read_order(replayed));
  ps::require_same_training(*order, spec);
  return order;
}

ps::Client::Restore restore_of(const ps::Spec& spec, int worker) {
  const std::filesystem::path path = restored_snapshot();
  if (path.empty()) return {};
  const auto open = [path, &spec] {
    auto snapshot = std::make_shared<const ps::Snapshot>(path);
    snapshot->require_same_model(spec);
    return snapshot;
  };
  return [&spec, open, snapshot = worker == 0 ? open() : nullptr](
             int partition, const std::function<void(ps::Message)>& assign) mutable {
    if (!snapshot) snapshot = open();
    snapshot->assign(spec, partition, assign);
  };
}

}  // namespace tutti::detail
