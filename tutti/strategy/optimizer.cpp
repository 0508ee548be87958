#include <torch/nn/module.h>

#include <algorithm>
#include <cmath>

#include "tutti/base/event.h"
#include "tutti/base/log.h"
#include "tutti/ps/client/client.h"
#include "tutti/strategy/detail/stale_reads.h"
#include "tutti/strategy/detail/worlds.h"
#include "tutti/strategy/loss_scaling.h"
#include "tutti/strategy/replicated.h"
#include "tutti/sync/detail/gradient_listener.h"
#include "tutti/sync/detail/gradient_sum.h"
#include "tutti/sync/detail/gradients.h"
#include "tutti/sync/sparse_tables.h"
#include "tutti/sync/tensors.h"

namespace tutti {

struct Optimizer::State final : WorldMember {
  explicit State(const ReplicatedModules& modules_in)
      : modules(modules_in), strategy(modules.strategy()) {}

  std::vector<NamedTensors> named() const {
    std::vector<NamedTensors> all;
    for (int local = 0; local < modules.size(); ++local)
      all.push_back(unique_parameters(*modules.module(local)));
    if (all[0].empty())
      throw UsageError(
          "the model has no parameters to train; was register_module forgotten? A module has those "
          "that register_parameter() gave it, and those of parts that register_module() gave it");
    return all;
  }

  TableLayers layers() const {
    TableLayers all;
    for (int local = 0; local < modules.size(); ++local)
      all.push_back(table_layers_of(*modules.module(local)));
    return all;
  }

  // The tables of the model; none for a strategy or an optimizer that cannot hold them.
  std::vector<ps::SparseTableSpec> table_specs(const optim::Recipe* recipe) const {
    const auto specs = tables_of(layers().at(0));
    if (specs.empty()) return specs;
    const std::string table = fmt::format("embedding table \"{}\"", specs[0].name);
    if (recipe != nullptr && !recipe->more_than_a_rule().empty())
      throw UsageError(fmt::format("{}: its rows are updated one by one, without {}", table,
                                   recipe->more_than_a_rule()));
    if (recipe == nullptr)
      throw UsageError(table +
                       ": its rows are updated by tutti's own rules (optim::adagrad() and so on); "
                       "a torch optimizer cannot");
    if (strategy.kind() == "multi_worker")
      throw UsageError(table +
                       ": strategy multi_worker has nobody who keeps its rows for all workers; use "
                       "parameter_server (tutti run --servers 1 -n 2 PROGRAM ARGS...), or mirrored "
                       "on one host");
    return specs;
  }

  void bound(std::shared_ptr<Updater> made, const std::vector<ps::SparseTableSpec>& specs = {},
             const std::optional<optim::Rule>& rule = {}) {
    updater = std::move(made);
    if (!specs.empty()) {
      const World& world = strategy.world();
      tables = std::make_shared<SparseTables>(
          specs, updater->client() != nullptr ? rows_on_servers(updater, world.time_limit)
                                              : rows_here(specs, rule.value()));
      tables->bind(world, layers());
    }
    join_workers();
    lanes.resize(modules.size());
  }

  // `why` they are not updated where they are, on devices.
  std::shared_ptr<Updater> updated_on_cpu(const UpdaterFactory& make,
                                          const std::string& why) const {
    const World& world = strategy.world();
    if (!world.on_devices()) return make(named());
    log(LogLevel::info, "optimizer: parameters are updated on the CPU, since {}", why);
    return make_staged_updater(world, named(), make);
  }

  // What workers that have no group do by the servers.
  void join_workers() {
    if (updater->client() == nullptr) return;
    if (!updater->client()->spec().staleness.synchronous()) lend_batches();
    if (strategy.world().apart) let_meet();
  }

  static std::shared_ptr<Updater> alive(const std::weak_ptr<Updater>& served) {
    auto updater = served.lock();
    if (!updater) throw UsageError("the optimizer that connected this strategy is gone");
    return updater;
  }

  void let_meet() {
    strategy.meet_by([served = std::weak_ptr(updater),
                      limit = strategy.world().time_limit](std::span<const std::byte> value) {
      const auto updater = alive(served);
      std::map<int, std::vector<std::byte>> all;
      for (const auto& [worker, bytes] :
           updater->client()->meet(updater->version(), value, Deadline(limit)))
        all[worker] = {bytes.span.begin(), bytes.span.end()};
      return all;
    });
  }

  // Loops over a DistributedDataset then read the batches that no other worker has.
  void lend_batches() {
    const Millis limit = strategy.world().time_limit;
    strategy.take_batches_from([served = std::weak_ptr(updater), limit](
                                   int dataset, int64_t epoch, int64_t batches, int64_t returned) {
      return alive(served)
          ->client()
          ->lease(
              {.dataset = dataset, .epoch = epoch, .num_batches = batches, .returned = returned},
              Deadline(2 * limit))
          .batch;
    });
  }

  int local_rank(const ReplicaContext& replica, std::string_view method) const {
    strategy.require_own(replica, method);
    return replica.local_rank();
  }

  bool takes_turns() const {
    const World& world = strategy.world();
    return world.in_turn() && world.size > 1;
  }

  // Replicas that take turns make one step in a run(): the update comes with the last of them.
  void take_part(int local) {
    if (!takes_turns()) return;
    if (lanes[local].took_part)
      throw UsageError(fmt::format(
          "replica {} took part in two steps in one run(): under one_device the replicas take "
          "turns on one thread, and the first update comes once all have had theirs; give each "
          "step a run() of its own",
          local));
    detail::require_no_stale_read();
    lanes[local].took_part = true;
  }

  // What the step of this run() changes is not to be read before the last has taken part.
  void await_update(int local) const {
    if (!takes_turns() || std::ranges::all_of(lanes, &Lane::took_part)) return;
    detail::watch_for_stale_reads(strategy.world().first_rank + local, updater->layout(),
                                  updater->parameters(local));
    if (tables)
      tables->on_look_up([](const ps::SparseTableSpec& table) {
        detail::note_stale_read(fmt::format("a look-up reads embedding table \"{}\"", table.name));
      });
  }

  void end_watch() const {
    if (!takes_turns()) return;
    detail::end_watch_for_stale_reads();
    if (tables) tables->on_look_up(nullptr);
  }

  // Nothing stays of a step that ended before all had taken part in it.
  void forget_step() {
    updater->forget_step();
    if (tables) tables->forget_step();
    for (Lane& lane : lanes) {
      lane.took_part = false;
      if (lane.settled) lane.forget();
    }
  }

  void prepare(int local) override {
    end_watch();
    if (takes_turns() && local == 0) forget_step();
    updater->prepare(local, Deadline(strategy.world().time_limit));
  }

  void complete(int local) override {
    if (takes_turns()) detail::require_no_stale_read();
    if (takes_turns() && local + 1 == modules.size()) require_all_or_none();
    updater->complete();
  }

  void require_all_or_none() const {
    const auto absent = std::ranges::find(lanes, false, &Lane::took_part);
    if (absent == lanes.end() || std::ranges::none_of(lanes, &Lane::took_part)) return;
    throw UsageError(fmt::format(
        "replica {} has not taken part in this run()'s step, others have; every replica calls "
        "minimize(), apply() or abstain() once",
        absent - lanes.begin()));
  }

  void rethrow_failure() override {
    end_watch();
    updater->rethrow_failure();
  }

  void rebind(const World& world) override {
    updater->rebind(world, named());
    if (tables) tables->bind(world, layers());
    for (size_t gone = modules.size(); gone < lanes.size(); ++gone)
      lanes[0].waiting.add(lanes[gone].waiting);
    const Lane fresh{.scale = lanes[0].scale};
    lanes.resize(modules.size(), fresh);
  }

  // What a local replica keeps for itself.
  struct Lane {
    std::vector<at::Tensor> gradients;      // kept to save allocations
    detail::GradientSum waiting;            // of passes that have had no update
    std::optional<optim::LossScale> scale;  // the same on all replicas; none: not scaled
    bool finite = true;                     // what waits, where losses are scaled
    bool settled = false;                   // waits for the others to decide
    bool took_part = false;                 // in the step of this run(); where they take turns

    void forget() {
      waiting.clear();
      settled = false;
    }
  };

  ReplicatedModules modules;
  Strategy strategy;
  std::shared_ptr<Updater> updater;
  std::shared_ptr<SparseTables> tables;  // null when the model has none
  std::vector<Lane> lanes;
};

namespace {

ReplicatedOptions completed(const Strategy& strategy, ReplicatedOptions options) {
  if (strategy.options().uses_servers() || strategy.kind() == "central_storage")
    throw UsageError(fmt::format(
        "strategy {} keeps one storage of the parameters, which tutti's own rules update "
        "(optim::adam() and so on); a torch optimizer updates a copy a replica: use mirrored",
        strategy.kind()));
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

}  // namespace

Optimizer::Optimizer(const ReplicatedModules& modules, const optim::Recipe& recipe)
    : state_(std::make_shared<State>(modules)) {
  const Strategy strategy = modules.strategy();
  const World& world = strategy.world();
  const StrategyOptions& options = strategy.options();
  const auto tables = state_->table_specs(&recipe);
  const UpdaterFactory on_cpu = [&](std::vector<NamedTensors> replicas) {
    if (options.uses_servers())
      return make_served_updater(world, recipe, std::move(replicas), detail::served_place(),
                                 options.served, tables);
    if (options.reduction == "fused")
      return make_shared_updater(world, recipe, std::move(replicas));
    return make_replicated_updater(world, recipe, std::move(replicas), completed(strategy, {}));
  };
  if (const std::string why = why_on_cpu(strategy, recipe); world.on_devices() && why.empty())
    state_->bound(make_device_updater(world, recipe, state_->named()), tables, recipe.rule());
  else
    state_->bound(state_->updated_on_cpu(on_cpu, why), tables, recipe.rule());
  state_->strategy.follow(state_);
}

Optimizer::Optimizer(const ReplicatedModules& modules, TorchOptimizerFactory factory,
                     const ReplicatedOptions& options)
    : state_(std::make_shared<State>(modules)) {
  state_->table_specs(nullptr);
  state_->bound(state_->updated_on_cpu(
      [&](std::vector<NamedTensors> replicas) {
        return make_replicated_updater(modules.strategy().world(), factory, std::move(replicas),
                                       completed(modules.strategy(), options));
      },
      "a torch optimizer was given"));
  state_->strategy.follow(state_);
}

Optimizer::Optimizer(const ReplicatedModules& modules, const optim::Recipe& recipe,
                     const ReplicatedOptions& options)
    : state_(std::make_shared<State>(modules)) {
  const auto tables = state_->table_specs(&recipe);
  state_->bound(state_->updated_on_cpu(
                    [&](std::vector<NamedTensors> replicas) {
                      return make_replicated_updater(modules.strategy().world(), recipe,
                                                     std::move(replicas),
                                                     completed(modules.strategy(), options));
                    },
                    "a reduction was chosen"),
                tables, recipe.rule());
  state_->strategy.follow(state_);
}

namespace {

void require_loss(std::string_view operation, const at::Tensor& loss) {
  if (loss.defined() && loss.numel() == 1) return;
  throw UsageError(
      fmt::format("{}: expected a loss of one element, got {}; take average_loss(per_sample, "
                  "global_batch_size)",
                  operation, loss.defined() ? c10::str(loss.sizes()) : "an undefined tensor"));
}

// A constant of zero is what a replica without samples may have.
void require_graph(std::string_view operation, const at::Tensor& loss) {
  if (loss.item<double>() == 0) return;
  throw UsageError(fmt::format(
      "{}: the loss is {} but has no graph, so nothing would be trained: {}\n  a replica without "
      "samples gives a loss of zero, or calls abstain()",
      operation, loss.item<double>(),
      at::GradMode::is_enabled() ? "it was detached, or all parameters that it uses are frozen"
                                 : "gradients are disabled (NoGradGuard)"));
}

void backward(const ReplicaContext& replica, std::string_view operation, const at::Tensor& loss,
              double scale) {
  if (!loss.requires_grad()) return require_graph(operation, loss);
  const TimedEvent timed("sync.backward", {"replica", int64_t{replica.rank()}});
  if (scale == 1)
    loss.backward();
  else
    loss.backward(at::full_like(loss, scale));
}

}  // namespace

void Optimizer::minimize(ReplicaContext& replica, const at::Tensor& loss) {
  require_loss("minimize", loss);
  const int local = state_->local_rank(replica, "minimize");
  state_->take_part(local);
  State::Lane& lane = state_->lanes[local];
  if (lane.scale) {
    accumulate(replica, loss);
    settle(replica);
  } else {
    state_->updater->begin(local, replica.has_met_in_backward() ? Overlap::off : Overlap::on);
    const bool alone = lane.waiting.empty() && !replica.has_met_in_backward();
    lane.waiting.put(state_->updater->parameters(local));
    lane.waiting.clear();
    const detail::Listening listening(loss, alone ? state_->updater->listener(local) : nullptr);
    backward(replica, "minimize", loss, 1);
    hand_in(local, 1.0);
  }
  state_->await_update(local);
}

void Optimizer::minimize(ReplicaContext& replica, const at::Tensor& per_sample,
                         int64_t global_batch_size) {
  minimize(replica, average_loss(per_sample, global_batch_size));
}

void Optimizer::accumulate(ReplicaContext& replica, const at::Tensor& loss) {
  require_loss("accumulate", loss);
  const int local = state_->local_rank(replica, "accumulate");
  State::Lane& lane = state_->lanes[local];
  const auto& parameters = state_->updater->parameters(local);
  detail::require_cleared(state_->updater->layout(), parameters);
  lane.waiting.put(parameters);
  backward(replica, "accumulate", loss, lane.scale ? lane.scale->value() : 1);
  lane.waiting.take(parameters);
}

void Optimizer::abstain(ReplicaContext& replica) {
  const int local = state_->local_rank(replica, "abstain");
  state_->take_part(local);
  State::Lane& lane = state_->lanes[local];
  if (lane.scale) {
    settle(replica);
  } else {
    const double weight = lane.waiting.empty() ? 0 : 1;
    state_->updater->begin(local, Overlap::off);
    lane.waiting.put(state_->updater->parameters(local));
    lane.waiting.clear();
    hand_in(local, weight);
  }
  state_->await_update(local);
}

void Optimizer::leave_out(ReplicaContext& replica, const at::Tensor& loss) {
  const int local = state_->local_rank(replica, "leave_out");
  if (state_->updater->client() != nullptr)
    throw UsageError("leave_out: parameter servers have parts of a step before others are made");
  State::Lane& lane = state_->lanes[local];
  state_->take_part(local);
  if (lane.scale) {
    if (loss.defined()) accumulate(replica, loss);
    return settle(replica, true);
  }
  state_->updater->begin(local, replica.has_met_in_backward() ? Overlap::off : Overlap::on);
  lane.waiting.clear();
  if (loss.defined()) backward(replica, "leave_out", loss, 1);
  hand_in(local, std::nan(""));
}

void Optimizer::apply(ReplicaContext& replica, std::span<const at::Tensor> gradients) {
  const int local = state_->local_rank(replica, "apply");
  const auto& trained = state_->updater->parameters(local);
  if (gradients.size() != trained.size())
    throw UsageError(fmt::format(
        "apply: got {} gradients for {} parameters; take gradients(loss, optimizer.parameters("
        "replica))",
        gradients.size(), trained.size()));
  if (state_->tables)
    throw UsageError(
        "apply: the model has embedding tables, whose rows get their gradients from minimize()");
  State::Lane& lane = state_->lanes[local];
  if (lane.scale || !lane.waiting.empty())
    throw UsageError(
        "apply: with scaled losses (scale_losses) or gradients that accumulate() has kept, "
        "minimize() makes the step");
  state_->take_part(local);
  state_->updater->begin(local, Overlap::off);
  lane.gradients.assign(gradients.begin(), gradients.end());
  exchange(local, 1.0);
  state_->await_update(local);
}

void Optimizer::zero_grad(ReplicaContext& replica) {
  const int local = state_->local_rank(replica, "zero_grad");
  for (const auto& parameter : state_->updater->parameters(local)) parameter.mutable_grad().reset();
  if (!state_->lanes[local].settled) state_->lanes[local].waiting.clear();
  if (state_->tables) state_->tables->zero_gradients(local);
}

const std::vector<at::Tensor>& Optimizer::parameters(const ReplicaContext& replica) const {
  return state_->updater->parameters(state_->local_rank(replica, "parameters"));
}

void Optimizer::leave_out_if(ReplicaContext& replica, const at::Tensor& bad) {
  if (!bad.defined() || bad.numel() != 1)
    throw UsageError(fmt::format("leave_out_if: expected one element, got {}",
                                 bad.defined() ? c10::str(bad.sizes()) : "an undefined tensor"));
  state_->updater->leave_out_if(state_->local_rank(replica, "leave_out_if"), bad);
}

int64_t Optimizer::forget_left_out() { return state_->updater->forget_left_out(); }

void Optimizer::forget_accumulated() {
  for (State::Lane& lane : state_->lanes) lane.forget();
  if (state_->tables) state_->tables->forget();
}

void Optimizer::scale_losses(const optim::LossScale& scale) {
  if (state_->tables)
    throw UsageError("scale_losses: rows of embedding tables are updated without it");
  if (state_->updater->client() != nullptr)
    throw UsageError(
        "scale_losses: all replicas leave a step out or none, which parameter servers cannot; use "
        "mirrored, multi_worker or central_storage");
  for (State::Lane& lane : state_->lanes) lane.scale = scale;
}

std::optional<optim::LossScale> Optimizer::loss_scale() const { return state_->lanes[0].scale; }

// All replicas leave a step out, or none. Those that take turns wait for the last.
void Optimizer::settle(ReplicaContext& replica, bool leaves_out) {
  const World& world = state_->strategy.world();
  std::vector<State::Lane>& lanes = state_->lanes;
  State::Lane& own = lanes[replica.local_rank()];
  own.finite = own.waiting.scale(1 / own.scale->value()) && !leaves_out;
  own.settled = true;
  if (!world.in_turn()) {
    int32_t overflowed = own.finite ? 0 : 1;
    replica.group().all_reduce_now(span_of(std::span(&overflowed, 1)), ReduceOp::max,
                                   world.time_limit);
    return hand_in_settled(replica.local_rank(), overflowed == 0);
  }
  if (replica.local_rank() + 1 < world.local) return;
  state_->require_all_or_none();
  const bool finite = std::ranges::all_of(lanes, &State::Lane::finite);
  for (int local = 0; local < world.local; ++local) hand_in_settled(local, finite);
}

void Optimizer::hand_in_settled(int local, bool finite) {
  State::Lane& lane = state_->lanes[local];
  const double weight = finite && !lane.waiting.empty() ? 1 : 0;
  state_->updater->begin(local, Overlap::off);
  if (finite) lane.waiting.put(state_->updater->parameters(local));
  lane.forget();
  lane.scale->update(!finite);
  hand_in(local, weight);
}

// Hands in the gradients that lie in the parameters.
void Optimizer::hand_in(int local, double weight) {
  auto& gradients = state_->lanes[local].gradients;
  gradients.clear();
  for (const auto& parameter : state_->updater->parameters(local))
    gradients.push_back(parameter.grad());
  exchange(local, weight);
}

void Optimizer::exchange(int local, double weight) {
  Updater& updater = *state_->updater;
  const World& world = state_->strategy.world();
  auto& gradients = state_->lanes[local].gradients;
  const TimedEvent exchanged("sync.exchange", {"replica", int64_t{world.first_rank + local}});
  if (state_->tables)
    state_->tables->hand_in(local, weight, updater.version(), updater.learning_rate());
  const int64_t version = updater.push(local, gradients, weight);
  updater.acquire(local, version, Deadline(world.time_limit));
  gradients.clear();
  for (const auto& parameter : updater.parameters(local)) parameter.mutable_grad().reset();
}

void Optimizer::prepare(ReplicaContext& replica) {
  state_->prepare(state_->local_rank(replica, "prepare"));
}

void Optimizer::set_learning_rate(double learning_rate) {
  state_->updater->set_learning_rate(learning_rate);
}
double Optimizer::learning_rate() const { return state_->updater->learning_rate(); }
int64_t Optimizer::wire_bytes_per_step() const { return state_->updater->wire_bytes_per_step(); }
int64_t Optimizer::version() const { return state_->updater->version(); }
Updater& Optimizer::updater() const noexcept { return *state_->updater; }

SparseTables* Optimizer::tables() const noexcept { return state_->tables.get(); }

}  // namespace tutti
