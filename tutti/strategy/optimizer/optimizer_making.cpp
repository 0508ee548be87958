// Which updater an Optimizer has.
#include <fmt/format.h>

#include <algorithm>

#include "tutti/strategy/membership/detail/worlds.h"
#include "tutti/strategy/mesh/detail/mesh_updater.h"
#include "tutti/strategy/optimizer/detail/optimizer_state.h"
#include "tutti/strategy/strategy_state.h"
#include "tutti/sync/compiled/compiled_updater.h"
#include "tutti/sync/replicated/whole_rules.h"
#include "tutti/sync/sharded/sharded_updater.h"

namespace tutti {
namespace {

ReplicatedOptions completed(const Strategy& strategy, ReplicatedOptions options) {
  const ReplicatedOptions chosen = detail::replicated_options(strategy.options());
  if (!options.compression.on()) options.compression = chosen.compression;
  if (!options.reduction) options.reduction = chosen.reduction;
  if (options.bucket_bytes == ReplicatedOptions().bucket_bytes) {
    options.bucket_bytes = chosen.bucket_bytes;
    options.first_bucket_bytes = std::min(options.first_bucket_bytes, chosen.first_bucket_bytes);
  }
  return options;
}

// `recipe` null: a torch optimizer, or a rule of whole parameters: what it is more than a rule.
Choice choice_of(const ReplicatedModules& modules, const optim::Recipe* recipe, bool own_reduction,
                 std::string more_than_a_rule = {}) {
  const Strategy strategy = modules.strategy();
  const World& world = strategy.world();
  RecipeFacts facts{.torch_optimizer = recipe == nullptr,
                    .own_reduction = own_reduction,
                    .more_than_a_rule = std::move(more_than_a_rule)};
  if (recipe != nullptr) {
    facts.more_than_a_rule = recipe->more_than_a_rule();
    facts.clips_or_groups = recipe->clips_or_groups();
  }
  const auto tables = tables_of(table_layers_of(*modules.module(0)));
  if (!tables.empty()) facts.table = tables.front().name;
  Machine machine = detail::machine_here(strategy.options());
  machine.gpus = world.on_devices();
  machine.several_devices = std::ranges::any_of(world.queues, [&](const DeviceQueue& queue) {
    return queue.device() != world.queues[0].device();
  });
  if (recipe != nullptr) can_update_on_devices(world, *recipe, &machine.not_there);
  return choose(strategy.options(), facts, {}, machine);
}

// Of replicas that are alike: all of a model, or one part of it.
std::shared_ptr<Updater> updater_of(UpdaterKind kind, const Strategy& strategy, const World& world,
                                    const optim::Recipe& recipe, std::vector<NamedTensors> replicas,
                                    const ReplicatedOptions& replicated) {
  const StrategyOptions& options = strategy.options();
  if (kind == UpdaterKind::local)
    return make_local_updater(world, recipe, std::move(replicas), *options.local);
  if (kind == UpdaterKind::replicated)
    return make_replicated_updater(world, recipe, std::move(replicas),
                                   completed(strategy, replicated));
  if (kind == UpdaterKind::sharded)
    return make_sharded_updater(
        world, recipe, std::move(replicas),
        {.shard = shard_by_name(options.shard), .bucket_bytes = options.shard_bucket_bytes});
  return make_shared_updater(world, recipe, std::move(replicas));
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
  state_->update_by(recipe, choice_of(modules, &recipe, false), {});
  state_->strategy.follow(state_, state_->updater);
}

Optimizer::Optimizer(const ReplicatedModules& modules, const optim::Recipe& recipe,
                     const ReplicatedOptions& options)
    : state_(std::make_shared<State>(modules)) {
  state_->update_by(recipe, choice_of(modules, &recipe, true), options);
  state_->strategy.follow(state_, state_->updater);
}

Optimizer::Optimizer(const ReplicatedModules& modules, TorchOptimizerFactory factory,
                     const ReplicatedOptions& options)
    : state_(std::make_shared<State>(modules)) {
  const Choice choice = choice_of(modules, nullptr, false, more_than_a_rule(factory));
  const ReplicatedOptions chosen = completed(modules.strategy(), options);
  const auto make = [&](const World& world, std::vector<NamedTensors> alike) {
    if (choice.updater == UpdaterKind::local)
      return make_local_updater(world, factory, std::move(alike),
                                *modules.strategy().options().local);
    return make_replicated_updater(world, factory, std::move(alike), chosen);
  };
  state_->bound(state_->updated_on_cpu(
      [&](std::vector<NamedTensors> replicas) {
        const World& world = modules.strategy().world();
        if (const WholeModel* const whole = modules.whole())
          return detail::make_mesh_updater(world, *whole, std::move(replicas), make);
        return make(world, std::move(replicas));
      },
      choice.why));
  state_->strategy.follow(state_, state_->updater);
}

void Optimizer::State::update_by(const optim::Recipe& recipe, const Choice& choice,
                                 const ReplicatedOptions& replicated) {
  const World& world = strategy.world();
  const StrategyOptions& options = strategy.options();
  const auto specs = tables_of(layers().at(0));
  const UpdaterFactory on_cpu = [&](std::vector<NamedTensors> replicas) {
    if (choice.updater == UpdaterKind::served) {
      ServedPlace place = detail::served_place();
      if (options.piece_bytes != 0) place.piece_bytes = options.piece_bytes;
      return make_served_updater(world, recipe, std::move(replicas), place, options.served, specs);
    }
    const WholeModel* const whole = modules.whole();
    if (whole == nullptr)
      return updater_of(choice.updater, strategy, world, recipe, std::move(replicas), replicated);
    return detail::make_mesh_updater(
        world, *whole, std::move(replicas),
        [&](const World& part, std::vector<NamedTensors> alike) {
          const optim::Recipe own = detail::recipe_of_part(recipe, *whole, alike[0]);
          return updater_of(choice.updater, strategy, part, own, std::move(alike), replicated);
        },
        &recipe);
  };
  if (choice.updater == UpdaterKind::compiled) {
    bound(make_compiled_updater(world, recipe, named()), specs, recipe.rule());
  } else if (choice.updater == UpdaterKind::on_devices) {
    log_sums(world, options.sum_order);
    bound(make_device_updater(world, recipe, named(), {.order = options.sum_order}), specs,
          recipe.rule());
  } else {
    bound(updated_on_cpu(on_cpu, choice.why), specs, recipe.rule());
  }
}

}  // namespace tutti
