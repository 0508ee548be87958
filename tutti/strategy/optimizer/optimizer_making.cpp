// Which updater an Optimizer has.
#include <fmt/format.h>

#include <algorithm>

#include "tutti/strategy/membership/detail/worlds.h"
#include "tutti/strategy/mesh/detail/mesh_updater.h"
#include "tutti/strategy/optimizer/detail/optimizer_state.h"
#include "tutti/strategy/strategy_state.h"
#include "tutti/sync/sharded/sharded_updater.h"

namespace tutti {
namespace {

ReplicatedOptions completed(const Strategy& strategy, ReplicatedOptions options) {
  if (strategy.options().uses_servers() || strategy.kind() == "central_storage")
    throw UsageError(fmt::format(
        "strategy {} keeps one storage of the parameters, which tutti's own rules update "
        "(optim::adam() and so on); a torch optimizer updates a copy a replica: use mirrored",
        strategy.kind()));
  if (const std::string& shard = strategy.options().shard; !shard.empty())
    throw UsageError(fmt::format(
        "--shard {}: slices are updated by tutti's own rules (optim::adam() and so on), and "
        "gradients go to those who own them; leave the torch optimizer, or the reduction, out",
        shard));
  const ReplicatedOptions chosen = detail::replicated_options(strategy.options());
  if (!options.compression.on()) options.compression = chosen.compression;
  if (!options.reduction) options.reduction = chosen.reduction;
  return options;
}

bool of_one_device(const World& world) {
  return std::ranges::all_of(world.queues, [&](const DeviceQueue& queue) {
    return queue.device() == world.queues[0].device();
  });
}

/// Why parameters of replicas on devices are updated on the CPU; "": they are not.
std::string why_on_cpu(const Strategy& strategy, const optim::Recipe& recipe) {
  const StrategyOptions& options = strategy.options();
  if (options.uses_servers()) return "parameter servers update them";
  if (options.reduction != "fused")
    return fmt::format("reduction {} was chosen", options.reduction);
  if (strategy.kind() == "central_storage" && !of_one_device(strategy.world()))
    return "central_storage keeps the variables of several devices there";
  std::string why;
  can_update_on_devices(strategy.world(), recipe, &why);
  return why;
}

// Of replicas that tutti's rules update at once, or each its slice.
std::shared_ptr<Updater> updated_together(const Strategy& strategy, const World& world,
                                          const optim::Recipe& recipe,
                                          std::vector<NamedTensors> replicas) {
  const StrategyOptions& options = strategy.options();
  if (options.shard.empty() || world.in_turn())
    return make_shared_updater(world, recipe, std::move(replicas));
  return make_sharded_updater(
      world, recipe, std::move(replicas),
      {.shard = shard_by_name(options.shard), .bucket_bytes = options.shard_bucket_bytes});
}

// One updater for each part of the model.
std::shared_ptr<Updater> on_mesh(const Strategy& strategy, const WholeModel& whole,
                                 std::vector<NamedTensors> ranks, const optim::Recipe& recipe) {
  return detail::make_mesh_updater(
      strategy.world(), whole, std::move(ranks),
      [&](const World& world, std::vector<NamedTensors> alike) {
        const optim::Recipe own = detail::recipe_of_part(recipe, whole, alike[0]);
        if (strategy.options().reduction == "fused")
          return updated_together(strategy, world, own, std::move(alike));
        return make_replicated_updater(world, own, std::move(alike), completed(strategy, {}));
      },
      recipe.clip());
}

void log_sums(const World& world, Order order) {
  if (world.device_groups.empty() || !world.chief) return;
  const bool hier = world.device_groups[0].engine().name() == "hier";
  log(LogLevel::info, "optimizer: {} adds gradients over {} processes, {}",
      hier ? "NCCL inside each host, and another engine between them," : "NCCL", world.processes(),
      order == Order::any ? "in its own order (--sum-order fixed: with the bits of one process)"
                          : "by pieces, each in the reduction shape");
}

}  // namespace

Optimizer::Optimizer(const ReplicatedModules& modules, const optim::Recipe& recipe)
    : state_(std::make_shared<State>(modules)) {
  const Strategy strategy = modules.strategy();
  const World& world = strategy.world();
  const StrategyOptions& options = strategy.options();
  const auto tables = state_->table_specs(&recipe);
  const UpdaterFactory on_cpu = [&](std::vector<NamedTensors> replicas) {
    if (const WholeModel* const whole = modules.whole())
      return on_mesh(strategy, *whole, std::move(replicas), recipe);
    if (options.uses_servers())
      return make_served_updater(world, recipe, std::move(replicas), detail::served_place(),
                                 options.served, tables);
    if (options.reduction == "fused")
      return updated_together(strategy, world, recipe, std::move(replicas));
    return make_replicated_updater(world, recipe, std::move(replicas), completed(strategy, {}));
  };
  if (const std::string why = why_on_cpu(strategy, recipe); world.on_devices() && why.empty()) {
    log_sums(world, options.sum_order);
    state_->bound(make_device_updater(world, recipe, state_->named(), {.order = options.sum_order}),
                  tables, recipe.rule());
  } else {
    state_->bound(state_->updated_on_cpu(on_cpu, why), tables, recipe.rule());
  }
  state_->strategy.follow(state_, state_->updater);
}

Optimizer::Optimizer(const ReplicatedModules& modules, TorchOptimizerFactory factory,
                     const ReplicatedOptions& options)
    : state_(std::make_shared<State>(modules)) {
  state_->table_specs(nullptr);
  state_->bound(state_->updated_on_cpu(
      [&](std::vector<NamedTensors> replicas) {
        const ReplicatedOptions chosen = completed(modules.strategy(), options);
        const auto make = [&](const World& world, std::vector<NamedTensors> alike) {
          return make_replicated_updater(world, factory, std::move(alike), chosen);
        };
        const World& world = modules.strategy().world();
        if (const WholeModel* const whole = modules.whole())
          return detail::make_mesh_updater(world, *whole, std::move(replicas), make);
        return make(world, std::move(replicas));
      },
      "a torch optimizer was given"));
  state_->strategy.follow(state_, state_->updater);
}

Optimizer::Optimizer(const ReplicatedModules& modules, const optim::Recipe& recipe,
                     const ReplicatedOptions& options)
    : state_(std::make_shared<State>(modules)) {
  const auto tables = state_->table_specs(&recipe);
  state_->bound(state_->updated_on_cpu(
                    [&](std::vector<NamedTensors> replicas) {
                      if (const WholeModel* const whole = modules.whole())
                        return on_mesh(modules.strategy(), *whole, std::move(replicas), recipe);
                      return make_replicated_updater(modules.strategy().world(), recipe,
                                                     std::move(replicas),
                                                     completed(modules.strategy(), options));
                    },
                    "a reduction was chosen"),
                tables, recipe.rule());
  state_->strategy.follow(state_, state_->updater);
}

}  // namespace tutti
