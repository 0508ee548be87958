// What of a loop of one's own is kept on disk: each thing that was added is a Kept.

#include "tutti/train/checkpointing/loop_checkpoint.h"

#include <fmt/format.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>
#include <torch/version.h>

#include <algorithm>
#include <cmath>
#include <exception>

#include "tutti/base/error.h"
#include "tutti/base/log.h"
#include "tutti/checkpoint/folder.h"
#include "tutti/cluster/join/join.h"
#include "tutti/comm/compression/compression.h"
#include "tutti/nn/dense_kernel.h"
#include "tutti/ps/client/client.h"
#include "tutti/sync/replicated/distributed_optimizer.h"
#include "tutti/sync/tensors.h"
#include "tutti/train/checkpointing/detail/checkpointing.h"
#include "tutti/train/checkpointing/detail/loop_parts.h"
#include "tutti/train/checkpointing/detail/model_kept.h"

namespace tutti {

using detail::Checkpointing;
using detail::KeptOfLoop;
using detail::LoopModules;

namespace {

// Each rank of the group is a worker of one replica.
World world_of(const Group& group) {
  World world;
  world.size = group.size();
  world.first_rank = group.rank();
  world.chief = group.rank() == 0;
  world.shape = group.reduction_shape();
  world.groups = {group};
  world.time_limit = group.time_limit();
  return world;
}

void require_name(const std::string& name) {
  const auto fits = [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' ||
           c == '.' || c == '-';
  };
  if (name.empty() || !std::ranges::all_of(name, fits))
    throw UsageError(fmt::format(
        "loop: \"{}\" is no name of what a checkpoint keeps: expected letters, digits and _.-",
        name));
}

}  // namespace

struct Checkpoint::State {
  State(std::optional<Strategy> strategy_in, World own_in, CheckpointOptions options_in,
        PreemptionOptions preemption_in)
      : strategy(std::move(strategy_in)),
        own(std::move(own_in)),
        world(strategy ? strategy->world() : own),
        own_members(own),
        members(strategy ? strategy->membership() : own_members),
        options(std::move(options_in)),
        preemption(std::move(preemption_in)) {
    if (options.folder.empty()) return;
    const auto at_least = [](const char* field, int64_t value, int64_t least) {
      if (value < least)
        throw UsageError(
            fmt::format("loop: checkpoints: {} is {}, must be {} or more", field, value, least));
    };
    at_least("every_steps", options.every_steps, 0);
    at_least("newest_kept", options.newest_kept, 1);
    at_least("best_kept", options.best_kept, 0);
    at_least("disk_limit", options.disk_limit.count(), 0);
    if (world.model_ranks() > 1)
      throw UsageError(fmt::format(
          "loop: checkpoints of loops are of replicas that each are one rank, and mesh {} has {} "
          "ranks a replica; Model::fit has checkpoints of such",
          world.mesh.to_string(), world.model_ranks()));
    if (!members.all_stay())
      throw UsageError(
          "loop: checkpoints are of workers that are in step; parameter servers keep snapshots "
          "(--snapshots)");
    if (strategy && strategy->moving_shares() != nullptr)
      throw UsageError(
          "loop: checkpoints of loops do not keep shares that move, by speed or as a file says: "
          "give equal ones, or numbers; Model::fit keeps them");
  }

  template <class Part>
  Part& add(std::unique_ptr<Part> part) {
    require_name(part->name());
    if (checkpointing || failure)
      throw UsageError(fmt::format(
          "loop: \"{}\" is added too late: all that is kept comes before restore() and the first "
          "step",
          part->name()));
    take_name(part->name(), part->kind());
    Part& added = *part;
    parts.push_back(std::move(part));
    return added;
  }

  void take_name(const std::string& name, const std::string& kind) {
    if (!loop.emplace(name, kind).second)
      throw UsageError(fmt::format("loop: two things are added as \"{}\"", name));
  }

  template <class T>
  void add_number(const std::string& name, T& number) {
    numbers.push_back(&add(detail::loop_number(name, number)));
  }

  void add_modules(const std::string& name, std::vector<torch::nn::Module*> of) {
    modules.push_back(&add(std::make_unique<LoopModules>(name, world, std::move(of))));
  }

  void add_torch(const std::string& name, torch::optim::Optimizer& optimizer,
                 DistributedOptimizer* distributed) {
    if (const std::string kind = detail::kind_of(optimizer); kind == "torch::optim::LBFGS")
      throw UsageError(fmt::format(
          "loop: \"{}\" is of {}, whose state LibTorch cannot save; take another optimizer", name,
          kind));
    std::map<const void*, std::string> names;
    for (const LoopModules* module : modules)
      for (const auto& [own, tensor] : unique_parameters(*module->first()))
        names.emplace(tensor.unsafeGetTensorImpl(), module->name() + "/" + own);
    for (const auto& group : optimizer.param_groups())
      for (const at::Tensor& parameter : group.params())
        names.emplace(parameter.unsafeGetTensorImpl(), fmt::to_string(names.size()));
    const auto name_of = [names](const at::Tensor& parameter) {
      const auto found = names.find(parameter.unsafeGetTensorImpl());
      if (found == names.end())
        throw UsageError(
            "loop: an optimizer has got parameters since it was added to the checkpoint");
      return found->second;
    };
    add(detail::loop_optimizer(name, world, optimizer, distributed, name_of));
  }

  bool meets() const { return members.all_stay() && !apart; }
  void begin();
  void require_restored() const;
  CheckpointManifest facts() const;
  CheckpointManifest manifest_of(int64_t step, const Values& values) const;
  void require_same_numbers(int64_t step) const;
  int asked_of_all(int64_t step) const;
  void save(int64_t step, const Values& values, Checkpointing::Priority priority);
  [[noreturn]] void end_where_asked(int64_t step, const Values& values, int signal);

  std::optional<Strategy> strategy;
  World own;
  const World& world;
  Membership own_members;
  const Membership& members;
  CheckpointOptions options;
  PreemptionHandler preemption;
  detail::KeptParts parts;
  std::map<std::string, std::string> loop;  // kinds by name
  std::vector<LoopModules*> modules;
  std::vector<const KeptOfLoop*> numbers;
  std::vector<Updater*> updaters;
  std::vector<std::string> tables;
  bool apart = false;  // workers do not meet in a step
  bool restored = false;
  int64_t last_step = 0;
  int64_t saved_step = 0;  // on disk, or on its way
  Values last_values;
  std::optional<Checkpointing> checkpointing;
  std::exception_ptr failure;  // of begin(), which took the parts along
};

// Once all is known that is kept.
void Checkpoint::State::begin() {
  if (failure) std::rethrow_exception(failure);
  if (checkpointing || options.folder.empty()) return;
  if (parts.empty())
    throw UsageError("loop: nothing was added to the checkpoint: what is it that goes on?");
  if (strategy)
    parts.push_back(detail::kept_generators(*strategy));
  else
    parts.push_back(detail::loop_generator(world));
  detail::TrainingPlace place{
      .who = detail::kLoop, .world = world, .members = members, .asked_to_end = [this] {
        return preemption.asked() != 0;
      }};
  place.require_whole = [this] {
    for (Updater* const updater : updaters) {
      if (auto* const late = updater->parts().late) late->complete();
      updater->require_whole();
    }
  };
  try {
    checkpointing.emplace(std::move(place), options, std::move(parts));
  } catch (const std::exception&) {
    failure = std::current_exception();
    modules.clear();
    numbers.clear();
    throw;
  }
}

void Checkpoint::State::require_restored() const {
  if (restored || options.folder.empty() || !(options.resume || started_again())) return;
  throw UsageError(
      "loop: the first step is made and restore() was not called, which goes on from what is "
      "there; call it before the loop");
}

CheckpointManifest Checkpoint::State::facts() const {
  CheckpointManifest facts{.strategy = strategy ? std::string(strategy->kind()) : "group",
                           .replicas = world.num_replicas(),
                           .workers = world.processes(),
                           .reduction_shape = world.shape.to_string(),
                           .dense_kernel = std::string(nn::name_of(nn::dense_kernel())),
                           .tables = tables,
                           .loop = loop,
                           .lives = id_of_all_lives(),
                           .tutti_version = TUTTI_VERSION,
                           .libtorch_version = TORCH_VERSION};
  if (!strategy) return facts;
  facts.seed = strategy->options().seed;
  facts.compression = describe(strategy->options().compression);
  facts.threads_per_replica = strategy->options().threads_per_replica;
  return facts;
}

CheckpointManifest Checkpoint::State::manifest_of(int64_t step, const Values& values) const {
  CheckpointManifest manifest = facts();
  manifest.step = manifest.version = step;
  for (const auto& [name, value] : values)
    if (std::isfinite(value)) manifest.values.emplace(name, value);
  return manifest;
}

// Each worker would go on with worker 0's.
void Checkpoint::State::require_same_numbers(int64_t step) const {
  if (!meets() || members.alone()) return;
  std::string own = fmt::format("step: {}\n", step);
  for (const KeptOfLoop* const number : numbers)
    own += fmt::format("{}: {}\n", number->name(), number->words());
  members.require_same("loop: checkpoint", own);
}

// The signal that asks one of them to end; 0: none.
int Checkpoint::State::asked_of_all(int64_t step) const {
  struct Told {
    int64_t asked, step;
  };
  const Told own{preemption.asked(), step};
  if (!meets()) return static_cast<int>(own.asked);
  const std::vector<Told> all = members.all_of(own);
  for (size_t worker = 1; worker < all.size(); ++worker)
    if (all[worker].step != all[0].step)
      throw Mismatch(fmt::format(
          "loop: worker 0 calls after_step({}), worker {} after_step({}): all count the same steps",
          all[0].step, worker, all[worker].step));
  return static_cast<int>(std::ranges::max(all, {}, &Told::asked).asked);
}

void Checkpoint::State::save(int64_t step, const Values& values, Checkpointing::Priority priority) {
  require_same_numbers(step);
  if (checkpointing->save(manifest_of(step, values), priority)) saved_step = step;
}

void Checkpoint::State::end_where_asked(int64_t step, const Values& values, int signal) {
  std::string why = preemption.why();
  if (why.empty()) why = "another worker";
  std::string what = fmt::format("loop: asked to end by {}, after {} steps", why, step);
  if (checkpointing)
    what += checkpointing->save_in_grace(manifest_of(step, values))
                ? fmt::format("; it can go on from {}", name_of_checkpoint(step))
                : "; they are not saved";
  throw Interrupted(signal, what);
}

Checkpoint::Checkpoint(Strategy strategy, CheckpointOptions options, PreemptionOptions preemption)
    : state_(std::make_unique<State>(std::move(strategy), World{}, std::move(options),
                                     std::move(preemption))) {}

Checkpoint::Checkpoint(Group group, CheckpointOptions options, PreemptionOptions preemption)
    : state_(std::make_unique<State>(std::nullopt, world_of(group), std::move(options),
                                     std::move(preemption))) {}

Checkpoint::Checkpoint(CheckpointOptions options, PreemptionOptions preemption)
    : Checkpoint(Group(), std::move(options), std::move(preemption)) {}

Checkpoint::~Checkpoint() = default;

// ---- what is kept ----

Checkpoint& Checkpoint::add(const std::string& name, const ReplicatedModules& modules) {
  std::vector<torch::nn::Module*> all;
  for (int local = 0; local < modules.size(); ++local) all.push_back(modules.module(local).get());
  state_->add_modules(name, std::move(all));
  return *this;
}

Checkpoint& Checkpoint::add(const std::string& name, torch::nn::Module& module) {
  state_->add_modules(name, {&module});
  return *this;
}

Checkpoint& Checkpoint::add(const std::string& name, Optimizer& optimizer) {
  State& state = *state_;
  const ps::Client* const client = optimizer.updater().parts().client;
  if (client != nullptr && !client->spec().staleness.synchronous()) state.apart = true;
  if (state.options.folder.empty()) return *this;
  const auto of =
      std::ranges::find(state.modules, optimizer.modules().module(0).get(), &LoopModules::first);
  if (of == state.modules.end())
    throw UsageError(fmt::format(
        "loop: \"{}\" is an optimizer whose modules the checkpoint has not; add them before it",
        name));
  (*of)->updated();
  state.add(detail::loop_updater(name, state.world, optimizer, **of));
  state.updaters.push_back(&optimizer.updater());
  if (SparseTables* const tables = optimizer.tables()) {
    if (!state.tables.empty())
      throw UsageError("loop: two optimizers with embedding tables are in one checkpoint");
    for (const ps::SparseTableSpec& table : tables->specs()) state.tables.push_back(table.words());
    state.parts.push_back(detail::kept_tables(*tables));
  }
  if (optimizer.loss_scale()) {
    const std::string scale = name + ".loss_scale";
    state.take_name(scale, "scale of losses");
    state.parts.push_back(detail::kept_loss_scale(optimizer, scale));
  }
  return *this;
}

Checkpoint& Checkpoint::add(const std::string& name, torch::optim::Optimizer& optimizer) {
  state_->add_torch(name, optimizer, nullptr);
  return *this;
}

Checkpoint& Checkpoint::add(const std::string& name, DistributedOptimizer& optimizer) {
  state_->add_torch(name, optimizer.optimizer(), &optimizer);
  return *this;
}

Checkpoint& Checkpoint::add(const std::string& name, torch::optim::LRScheduler& scheduler) {
  state_->numbers.push_back(&state_->add(detail::loop_scheduler(name, scheduler)));
  return *this;
}

Checkpoint& Checkpoint::add(const std::string& name, Variable& variable) {
  state_->add(detail::loop_variable(name, variable));
  return *this;
}

Checkpoint& Checkpoint::add(const std::string& name, at::Tensor& tensor) {
  if (!tensor.defined()) throw UsageError(fmt::format("loop: \"{}\" is an undefined tensor", name));
  state_->add(detail::loop_tensor(name, tensor));
  return *this;
}

Checkpoint& Checkpoint::add(const std::string& name, int& number) {
  state_->add_number(name, number);
  return *this;
}

Checkpoint& Checkpoint::add(const std::string& name, int64_t& number) {
  state_->add_number(name, number);
  return *this;
}

Checkpoint& Checkpoint::add(const std::string& name, double& number) {
  state_->add_number(name, number);
  return *this;
}

Checkpoint& Checkpoint::add_own(const std::string& name, std::vector<double>& each) {
  state_->add(detail::loop_own(name, state_->world, each));
  return *this;
}

// ---- going on ----

std::optional<int64_t> Checkpoint::restore() {
  State& state = *state_;
  state.restored = true;
  if (state.last_step > 0)
    throw UsageError(
        fmt::format("loop: restore() comes before the first step, {} are made", state.last_step));
  state.begin();
  if (!state.checkpointing) return std::nullopt;
  const auto then = state.checkpointing->resume(state.facts());
  if (!then) return std::nullopt;
  state.last_step = state.saved_step = then->step;
  report_step(then->step);
  if (state.world.chief)
    log(LogLevel::info, "loop: goes on from {} in {}", name_of_checkpoint(then->step),
        state.options.folder.string());
  return then->step;
}

void Checkpoint::after_step(int64_t step, const Values& values) {
  State& state = *state_;
  state.require_restored();
  if (step <= state.last_step)
    throw UsageError(fmt::format("loop: after_step({}) after step {}: steps ascend from 1", step,
                                 state.last_step));
  state.begin();
  state.last_step = step;
  state.last_values = values;
  report_step(step);
  if (const int asked = state.asked_of_all(step); asked != 0)
    state.end_where_asked(step, values, asked);
  if (state.checkpointing && state.checkpointing->due(step)) save(step, values);
}

void Checkpoint::save(int64_t step, const Values& values) {
  State& state = *state_;
  state.require_restored();
  if (step < std::max<int64_t>(state.last_step, 1))
    throw UsageError(
        fmt::format("loop: save({}) after step {}: steps ascend from 1", step, state.last_step));
  state.begin();
  state.last_step = step;
  state.last_values = values;
  if (!state.checkpointing) return;
  state.save(step, values, Checkpointing::Priority::idle);
}

std::string Checkpoint::end() {
  State& state = *state_;
  if (state.failure) std::rethrow_exception(state.failure);
  if (!state.checkpointing) return "";
  if (state.saved_step < state.last_step) {
    state.save(state.last_step, state.last_values, Checkpointing::Priority::normal);
  }
  const std::string lost = state.checkpointing->end();
  if (const std::string words = state.checkpointing->summary(); !words.empty())
    log(LogLevel::info, "loop: {}", words);
  return lost;
}

}  // namespace tutti
