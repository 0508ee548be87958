/// What stands behind an Optimizer: shared by optimizer_making.cpp (which updater it has) and
/// optimizer.cpp (a step), not for users.
#pragma once

#include <torch/nn/module.h>

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tutti/base/log.h"
#include "tutti/ps/client/client.h"
#include "tutti/strategy/choice/choice.h"
#include "tutti/strategy/membership/detail/agreement.h"
#include "tutti/strategy/membership/membership.h"
#include "tutti/strategy/modules/replicated.h"
#include "tutti/strategy/optimizer/detail/stale_reads.h"
#include "tutti/sync/detail/gradient_sum.h"
#include "tutti/sync/detail/gradients.h"
#include "tutti/sync/on_devices/detail/captured_steps.h"
#include "tutti/sync/on_devices/detail/device_loss_scale.h"
#include "tutti/sync/sparse_tables.h"
#include "tutti/sync/tensors.h"

namespace tutti {

struct Optimizer::State final : WorldMember {
  explicit State(const ReplicatedModules& modules_in)
      : modules(modules_in), strategy(modules.strategy()) {}
  ~State() override {
    strategy.membership().meet_no_more(this);
    strategy.take_no_more_batches_from(this);
  }

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

  // Makes its updater, as was chosen.
  void update_by(const optim::Recipe& recipe, const Choice& choice,
                 const ReplicatedOptions& replicated);

  void bound(std::shared_ptr<Updater> made, const std::vector<ps::SparseTableSpec>& specs = {},
             const std::optional<optim::Rule>& rule = {}) {
    updater = std::move(made);
    if (!specs.empty()) {
      const World& world = strategy.world();
      tables = std::make_shared<SparseTables>(
          specs, updater->parts().client != nullptr ? rows_on_servers(updater, world.time_limit)
                                                    : rows_here(specs, rule.value()));
      tables->bind(world, layers());
    }
    join_workers();
    lanes.resize(modules.size());
    if (strategy.options().step_graph) capture_steps();
  }

  void capture_steps() {
    StepCapture* const capture = updater->parts().capture;
    if (capture == nullptr)
      throw UsageError(
          "step_graph: it is of parameters that one device updates by itself, with sgd, adam or "
          "adamw; leave out --step-graph");
    captured = std::make_unique<detail::CapturedSteps>(
        std::shared_ptr<StepCapture>(updater, capture), strategy.world().queues.at(0));
  }

  // `why` they are not updated where they are, on devices.
  std::shared_ptr<Updater> updated_on_cpu(const UpdaterFactory& make,
                                          const std::string& why) const {
    const World& world = strategy.world();
    if (!world.on_devices()) return make(named());
    log(LogLevel::info, "optimizer: parameters are updated on the CPU, since {}", why);
    return make_staged_updater(world, named(), make);
  }

  // What workers of servers do by them beside updates.
  void join_workers() {
    if (updater->parts().client == nullptr) return;
    if (!updater->parts().client->spec().staleness.synchronous()) lend_batches();
    let_meet();
  }

  static std::shared_ptr<Updater> alive(const std::weak_ptr<Updater>& served) {
    auto updater = served.lock();
    if (!updater) throw UsageError("the optimizer that connected this strategy is gone");
    return updater;
  }

  void let_meet() {
    strategy.membership().meet_at(
        [served = std::weak_ptr(updater),
         limit = strategy.world().time_limit](std::span<const std::byte> value) {
          const auto updater = alive(served);
          Membership::ByWorker all;
          for (const auto& [worker, bytes] :
               updater->parts().client->meet(updater->version(), value, Deadline(limit)))
            all[worker] = {bytes.span.begin(), bytes.span.end()};
          return all;
        },
        this);
  }

  // Loops over a DistributedDataset then read the batches that no other worker has.
  void lend_batches() {
    const Millis limit = strategy.world().time_limit;
    strategy.take_batches_from(
        [served = std::weak_ptr(updater), limit, asked = strategy.world().asked](
            int dataset, int64_t epoch, int64_t batches, int64_t returned) {
          return alive(served)
              ->parts()
              .client
              ->lease({.dataset = dataset,
                       .epoch = epoch,
                       .num_batches = batches,
                       .returned = returned,
                       .agreed = returned < 0 ? asked : ""},
                      Deadline(2 * limit))
              .batch;
        },
        this);
  }

  int local_rank(const ReplicaContext& replica, std::string_view method) const {
    strategy.require_own(replica, method);
    return replica.local_rank();
  }

  bool takes_turns() const {
    const World& world = strategy.world();
    return world.in_turn() && world.size > 1;
  }

  // The loss scale that the replica's device keeps; null: the host does, or there is none.
  detail::DeviceLossScale* scale_there(int local) const {
    const auto* const devices = updater->parts().on_device;
    return devices != nullptr ? devices->scale_of(local) : nullptr;
  }

  // For a backward pass of the replica.
  detail::GradientListener* begin(const ReplicaContext& replica) const {
    const bool overlaps = !replica.has_met_in_backward() && !strategy.world().in_turn();
    return updater->begin(replica.local_rank(), overlaps ? Overlap::on : Overlap::off);
  }

  // What backward() begins with; undefined: with 1.
  at::Tensor seed_of(int local, const at::Tensor& loss) const {
    if (!lanes[local].scale) return {};
    if (const auto* there = scale_there(local)) return there->seed_of(loss);
    return at::full_like(loss, lanes[local].scale->value());
  }

  // Divides what waits by the scale. Whether all was finite, for which the host waits.
  bool unscale(const ReplicaContext& replica) {
    const at::NoGradGuard no_grad;
    Lane& lane = lanes[replica.local_rank()];
    const auto there = at::TensorOptions().dtype(at::kFloat).device(replica.device());
    at::Tensor found = at::zeros({1}, there);
    lane.waiting.scale(at::full({1}, 1 / lane.scale->value(), there), found);
    bool finite = true;
    LateReads read(replica.queue());
    read.add({found},
             [&](const std::vector<at::Tensor>& values) { finite = values[0].item<float>() == 0; });
    read.settle(Deadline(patience_with_device(strategy.world().time_limit)));
    return finite;
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

  // Where replicas take turns the last of them learns it for all.
  void learn(int local, const Verdict& verdict) {
    const bool all = takes_turns();
    if (all && !std::ranges::all_of(lanes, &Lane::took_part)) return;
    for (Lane& lane : all ? std::span(lanes) : std::span(lanes).subspan(local, 1)) {
      lane.verdict = verdict;
      if (lane.scale && scale_there(local) == nullptr) lane.scale->update(verdict.overflowed);
    }
  }

  // What the step of this run() changes is not to be read before the last has taken part.
  void await_update(int local) const {
    if (!takes_turns() || std::ranges::all_of(lanes, &Lane::took_part)) return;
    detail::watch_for_stale_reads(strategy.world().first_rank + local, updater->layout(local),
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

  // What the loss has trained, where that is none of the parameters: for the words of an error.
  void note_other(int local, const at::Tensor& loss) {
    const auto& own = updater->parameters(local);
    const bool any =
        std::ranges::any_of(own, [](const at::Tensor& one) { return one.grad().defined(); });
    lanes[local].other = any ? at::Tensor() : detail::other_leaf_of(loss, own);
  }

  // What local replicas have noted; where they do not meet, this one.
  [[noreturn]] void throw_nothing_trained(const detail::NothingTrained& nothing, int local) const {
    at::Tensor other = lanes[local].other;
    for (const Lane& lane : lanes)
      if (!other.defined() && updater->parts().client == nullptr) other = lane.other;
    std::string words = nothing.what();
    if (other.defined()) {
      words += fmt::format("\n  the loss is of another module: its parameter of shape {} has one",
                           c10::str(other.sizes()));
      const auto& slots = updater->layout(local).slots;
      const auto alike = std::ranges::find_if(
          slots, [&](const ParameterSlot& slot) { return slot.shape == other.sizes(); });
      if (alike != slots.end()) words += fmt::format(", in the place of \"{}\"", alike->name);
    }
    throw UsageError(words +
                     "\n  in the function that run() is given the model is local(replica), of the "
                     "object that the optimizer was made for");
  }

  // Nothing stays of a step that ended before all had taken part in it.
  void forget_step() {
    if (tables) tables->forget_step();
    for (Lane& lane : lanes) {
      lane.took_part = false;
      lane.other.reset();
    }
  }

  void in_run(Moment moment, int local) override {
    switch (moment) {
      case Moment::begins: return get_ready(local);
      case Moment::ends: return end_run(local);
      case Moment::failed: return rethrow_failure();
    }
  }

  void get_ready(int local) {
    end_watch();
    if (takes_turns() && local == 0) forget_step();
    updater->ready(local, Deadline(strategy.world().time_limit));
  }

  void end_run(int local) const {
    if (takes_turns()) detail::require_no_stale_read();
    if (takes_turns() && local + 1 == modules.size()) require_all_or_none();
    if (auto* const gathers = updater->parts().gathers) gathers->meet(local, Until::whole);
    if (auto* const late = updater->parts().late) late->complete();
  }

  void rethrow_failure() const {
    end_watch();
    const UpdaterParts& parts = updater->parts();
    if (parts.gathers != nullptr) parts.gathers->rethrow_failure();
    if (parts.late != nullptr) parts.late->rethrow_failure();
  }

  void fail(int local, const std::string& reason) noexcept override {
    if (auto* const gathers = updater->parts().gathers) gathers->fail(local, reason);
  }

  void require_all_or_none() const {
    const auto absent = std::ranges::find(lanes, false, &Lane::took_part);
    if (absent == lanes.end() || std::ranges::none_of(lanes, &Lane::took_part)) return;
    throw UsageError(fmt::format(
        "replica {} has not taken part in this run()'s step, others have; every replica calls "
        "minimize(), apply() or abstain() once",
        absent - lanes.begin()));
  }

  void rebind(const World& world) override {
    updater->rebind(world, named());
    if (tables) tables->bind(world, layers());
    for (size_t gone = modules.size(); gone < lanes.size(); ++gone)
      lanes[0].waiting.add(lanes[gone].waiting);
    if (captured) capture_steps();
    const Lane fresh{.scale = lanes[0].scale};
    lanes.resize(modules.size(), fresh);
  }

  // What a local replica keeps for itself.
  struct Lane {
    std::vector<at::Tensor> gradients;      // kept to save allocations
    detail::GradientSum waiting;            // of passes that have had no update
    std::optional<optim::LossScale> scale;  // the same on all replicas; none: not scaled
    at::Tensor other;                       // noted by note_other()
    Vote vote;                              // what is known of that of the step to come
    std::function<int()> signal;            // the rest of it
    Verdict verdict;                        // of the last step
    bool took_part = false;                 // in the step of this run(); where they take turns
  };

  ReplicatedModules modules;
  Strategy strategy;
  std::shared_ptr<Updater> updater;
  std::shared_ptr<SparseTables> tables;             // null when the model has none
  std::unique_ptr<detail::CapturedSteps> captured;  // null: every step is the host's
  std::vector<Lane> lanes;
};

}  // namespace tutti
