// Loss and metrics over a dataset, without training.

#include "tutti/train/model/detail/evaluation.h"

#include <fmt/format.h>

#include <csignal>
#include <deque>

#include "tutti/base/log.h"
#include "tutti/base/stop.h"
#include "tutti/base/suggest.h"
#include "tutti/nn/detail/graph_step.h"
#include "tutti/strategy/membership/detail/worlds.h"
#include "tutti/train/model/detail/agreement.h"
#include "tutti/train/model/detail/by_plugin.h"
#include "tutti/train/model/detail/late_totals.h"
#include "tutti/train/model/detail/placement.h"

namespace tutti {

using detail::Totals;

namespace {

/// What one replica's parts of the batches of a dataset add up to; made in its run().
class Evaluation {
 public:
  Evaluation(Model::State& model, std::string_view operation,
             std::shared_ptr<const data::Epoch> epoch, std::shared_ptr<data::Loader> loader,
             ReplicaContext& replica, EvaluationBar* bar, detail::PassCallbacks* callbacks)
      : model_(model),
        operation_(operation),
        epoch_(std::move(epoch)),
        loader_(std::move(loader)),
        replica_(replica),
        bar_(replica.replica() == 0 ? bar : nullptr),
        callbacks_(replica.local_rank() == 0 ? callbacks : nullptr),
        late_(replica.queue()) {
    detail::require_here(*model.modules.module(replica.local_rank()), replica);
  }

  Totals over(const std::shared_ptr<const mesh::Topology>& topology) {
    const at::NoGradGuard no_grad;
    if (model_.modules.whole() != nullptr) return on_mesh(topology);
    for (int64_t step = 0; step < epoch_->num_batches(); ++step) {
      totals_.signal = stop_requested();
      if (totals_.signal != 0) break;
      const DistributedBatch batch(epoch_, step, topology, nullptr, loader_);
      if (callbacks_ != nullptr) callbacks_->step_begin(step);
      if (batch.local_size(replica_) > 0) {
        detail::at_batch({operation_, *epoch_, batch, replica_}, [&] { add(batch); });
        late_.poll(patience());
        show(batch);
      }
      if (callbacks_ != nullptr) callbacks_->step_end(step);
    }
    late_.settle(patience());
    return end();
  }

  void take(const DistributedBatch& batch, const detail::Tensors& columns,
            const detail::Tensors& outputs) {
    count(batch, detail::parts_of(columns, model_.num_inputs, goals()), outputs);
    show(batch);
  }
  Totals end() {
    totals_.signal = stop_requested();
    return std::move(totals_);
  }

  // All ranks of a replica go through all batches: none ends before the others.
  Totals on_mesh(const std::shared_ptr<const mesh::Topology>& topology) {
    detail::forward_on_mesh(model_, replica_, {operation_, epoch_, topology, callbacks_},
                            [&](const DistributedBatch& batch, const detail::Tensors& columns,
                                const detail::Tensors& outputs) { take(batch, columns, outputs); });
    return end();
  }

 private:
  Deadline patience() const { return Deadline(patience_with_device(replica_.time_limit())); }
  void add(const DistributedBatch& batch) {
    auto columns = batch.host_columns(replica_);
    if (replica_.queue().on_device()) return queue(batch, std::move(columns));
    auto parts = detail::parts_of(columns, model_.num_inputs, goals());
    StepOutcome made;
    if (model_.compiled->test_step) {
      made = tested(parts, parts.added);
    } else {
      const AddedLosses added;
      made.outputs = outputs_of(parts);
      const at::Tensor more = detail::added_by_forward(goals(), added, parts);
      parts.added = added.metrics(parts.inputs[0].size(0));
      if (!more.defined()) return count(batch, parts, made.outputs);
      const detail::Goal& goal = goals()[0];
      made.losses =
          goal.loss.kernel().per_sample(goal.output(made.outputs), parts.targets[0]) + more;
    }
    totals_.add_known(made.losses, parts.weights);
    totals_.add_metrics(goals(), made.outputs, parts);
    totals_.samples += batch.local_size(replica_);
  }

  StepOutcome tested(const detail::BatchParts& parts, AddedMetrics& metrics) const {
    return detail::call_step(*model_.compiled, model_.compiled->test_step,
                             *model_.modules.module(replica_.local_rank()),
                             model_.forward(replica_.local_rank()), parts, metrics);
  }

  void count(const DistributedBatch& batch, const detail::BatchParts& parts,
             const detail::Tensors& outputs) {
    totals_.add_losses(goals(), outputs, parts);
    totals_.add_metrics(goals(), outputs, parts);
    totals_.samples += batch.local_size(replica_);
  }

  void queue(const DistributedBatch& batch, detail::Tensors columns) {
    const auto host = detail::host_batch(std::move(columns), model_.num_inputs, goals());
    if (model_.graph) nn::detail::require_steps_of_inputs(*model_.graph, host->parts.inputs);
    const auto there = detail::device_batch(replica_, host->parts);
    detail::Tensors outputs, losses;
    AddedMetrics metrics;
    if (model_.compiled->test_step) {
      StepOutcome made = tested(there->parts, metrics);
      outputs = std::move(made.outputs);
      losses = {std::move(made.losses)};
    } else {
      const AddedLosses added;
      outputs = outputs_of(there->parts);
      losses = detail::losses_on_device(goals(), outputs, host->parts, there->parts);
      const at::Tensor more = detail::added_by_forward(goals(), added, there->parts);
      if (more.defined()) losses[0] = losses[0] + more;
      metrics = added.metrics(there->parts.inputs[0].size(0));
    }
    detail::read_later(late_, goals(), host, losses, outputs, metrics,
                       [this, batch](const detail::Figures& figures) {
                         detail::at_batch({operation_, *epoch_, batch, replica_},
                                          [&] { figures.add_to(totals_, goals()); });
                       });
  }

  void show(const DistributedBatch& batch) {
    if (bar_ == nullptr) return;
    shown_samples_ += batch.global_size();
    bar_->show(batch.step() + 1, epoch_->num_batches(), shown_samples_, Clock::now());
  }

  const detail::Goals& goals() const { return model_.compiled->goals; }
  detail::Tensors outputs_of(const detail::BatchParts& parts) const {
    return model_.compiled->outputs(model_.forward(replica_.local_rank()), parts.inputs);
  }

  Model::State& model_;
  std::string_view operation_;
  std::shared_ptr<const data::Epoch> epoch_;
  std::shared_ptr<data::Loader> loader_;
  ReplicaContext& replica_;
  EvaluationBar* const bar_;
  detail::PassCallbacks* const callbacks_;
  int64_t shown_samples_ = 0;
  Totals totals_;
  LateReads late_;
};

/// All replicas at once.
PerReplica<Totals> evaluated_by_plugin(Model::State& model, const detail::PluginPass& pass,
                                       EvaluationBar* bar) {
  std::vector<ReplicaContext> replicas = detail::OnHost(model.strategy).replicas();
  std::deque<Evaluation> each;
  for (ReplicaContext& replica : replicas)
    each.emplace_back(model, pass.operation, pass.epoch, pass.loader, replica, bar, nullptr);
  detail::forward_by_plugin(model, pass,
                            [&](const ReplicaContext& replica, const DistributedBatch& batch,
                                const detail::Tensors& columns, const detail::Tensors& outputs) {
                              each[static_cast<size_t>(replica.local_rank())].take(batch, columns,
                                                                                   outputs);
                            });
  std::vector<Totals> totals;
  for (Evaluation& one : each) totals.push_back(one.end());
  return PerReplica<Totals>(std::move(totals), model.strategy.world().first_rank);
}

}  // namespace

Scores Model::State::evaluate(std::string_view operation, const data::Dataset& dataset,
                              const data::LoaderOptions& loader_options, const Callbacks& callbacks,
                              EvaluationBar* bar) {
  if (compiled->optimizer.updater().averaged() != nullptr) require_whole();
  const auto epoch = detail::first_epoch(strategy, dataset);
  const auto loader =
      detail::make_loader(loader_options, strategy.world(), strategy.options().threads_per_replica);
  detail::PassCallbacks called(strategy, operation, callbacks, detail::PassCallbacks::of_test(),
                               *epoch);
  called.begin();
  const detail::EvaluationMode mode(modules);
  std::shared_ptr<const mesh::Topology> topology;
  const auto own = [&](ReplicaContext& replica) {
    return Evaluation(*this, operation, epoch, loader, replica, bar, &called).over(topology);
  };
  Totals all;
  strategy.membership().until_whole([&](std::shared_ptr<const mesh::Topology> here) {
    topology = std::move(here);
    detail::begin_epoch(*loader, *epoch, topology, nullptr, 0, epoch->num_batches());
    all = detail::sum_over_world(
        strategy, compiled->goals,
        plugin ? evaluated_by_plugin(*this, {operation, epoch, topology, loader, &called}, bar)
               : strategy.run(own));
    if (all.signal != 0) throw_if_stop_requested("evaluate");
    if (all.signal != 0)
      throw Interrupted(SIGTERM,
                        "evaluate: another worker was asked to end and did not see all samples");
    return all.samples >= epoch->num_samples();
  });
  for (const std::string& sample : loader->report().replaced)
    log_once(fmt::format("{} {}", operation, sample), LogLevel::warning,
             "{}: another sample in place of {}", operation, sample);
  Scores scores = detail::scores_of(all, compiled->goals);
  NamedValues values = scores.metrics;
  values.emplace(values.begin(), "loss", scores.loss);
  called.end(std::move(values));
  return scores;
}

void Model::State::require_test(std::string_view operation) {
  const detail::Compiled& now = require_compiled(operation);
  if (!now.has_loss && !now.test_step && now.train_step)
    throw UsageError(fmt::format(
        "{}: compile() was given train_step, and neither a loss nor test_step, which say what is "
        "evaluated",
        operation));
}

Scores Model::evaluate(const data::Dataset& dataset, const data::LoaderOptions& loader, int verbose,
                       const Callbacks& callbacks) {
  if (verbose != 0 && verbose != 1)
    throw UsageError(fmt::format("evaluate: verbose is {}, must be 0 or 1", verbose));
  take_input_of(dataset);
  state_->require_compiled("evaluate");
  data::check_options(loader);
  state_->require_test("evaluate");
  state_->check_data("evaluate", dataset, true);
  detail::require_same_words(state_->strategy, "evaluate",
                             detail::evaluate_words(loader, callbacks));
  detail::require_same_data(state_->strategy.membership(), "evaluate", "data", dataset,
                            state_->strategy.options().seed);
  state_->refresh();
  EvaluationBar bar(verbose == 1, Clock::now());
  return state_->evaluate("evaluate", dataset, loader, callbacks, &bar);
}

// ---- callbacks ----

detail::PassCallbacks::Hooks detail::PassCallbacks::of_test() {
  return {&Callback::on_test_begin, &Callback::on_test_step_begin, &Callback::on_test_step_end,
          &Callback::on_test_end};
}

detail::PassCallbacks::Hooks detail::PassCallbacks::of_predict() {
  return {&Callback::on_predict_begin, &Callback::on_predict_step_begin,
          &Callback::on_predict_step_end, &Callback::on_predict_end};
}

detail::PassCallbacks::PassCallbacks(const Strategy& strategy, std::string_view operation,
                                     const Callbacks& callbacks, Hooks hooks,
                                     const data::Epoch& epoch)
    : strategy_(strategy),
      operation_(operation),
      callbacks_(callbacks),
      hooks_(hooks),
      facts_{.batches = epoch.num_batches(), .samples = epoch.num_samples()} {}

void detail::PassCallbacks::begin() { call(hooks_.begin); }

void detail::PassCallbacks::at(int64_t batch, Hook hook) {
  facts_.batch = batch;
  call(hook);
}

void detail::PassCallbacks::call(Hook hook) {
  const bool chief = strategy_.world().chief;
  for (const auto& callback : callbacks_) {
    if (failure_) return;
    if (!chief && !callback->on_every_worker()) continue;
    try {
      ((*callback).*hook)(facts_);
    } catch (const std::exception&) {
      failure_ = located(fmt::format("{}, batch {} of {}, callback {}", operation_,
                                     std::min(facts_.batch + 1, facts_.batches), facts_.batches,
                                     callback->name()));
    }
  }
}

// Where workers are not in step the chief may be alone here, and none waits for it.
void detail::PassCallbacks::end(NamedValues values) {
  if (callbacks_.empty()) return;
  facts_.batch = facts_.batches;
  facts_.values = std::move(values);
  call(hooks_.end);
  const Membership& members = strategy_.membership();
  if (members.in_step() && members.all_stay())
    agree_on_failure(strategy_, failure_, operation_ + ": callbacks");
  else if (failure_)
    std::rethrow_exception(failure_);
}

// ---- scores ----

namespace {

template <class Value>
const Value& value_of(std::string_view kind, std::string_view wanted,
                      const std::vector<std::pair<std::string, Value>>& values) {
  std::vector<std::string> names;
  for (const auto& [name, value] : values) {
    if (name == wanted) return value;
    names.push_back(name);
  }
  throw UsageError(unknown_message(kind, wanted, names));
}

}  // namespace

double Scores::at(std::string_view metric) const { return value_of("metric", metric, metrics); }

Matrix Scores::matrix(std::string_view metric) const {
  return value_of("metric that is a matrix", metric, matrices);
}

}  // namespace tutti
