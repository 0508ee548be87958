// Loss and metrics over a dataset, without training.

#include "tutti/train/model/detail/evaluation.h"

#include <fmt/format.h>

#include <csignal>
#include <deque>

#include "tutti/base/log.h"
#include "tutti/base/stop.h"
#include "tutti/base/suggest.h"
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
             ReplicaContext& replica, EvaluationBar* bar)
      : model_(model),
        operation_(operation),
        epoch_(std::move(epoch)),
        loader_(std::move(loader)),
        replica_(replica),
        bar_(replica.replica() == 0 ? bar : nullptr),
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
      if (batch.local_size(replica_) == 0) continue;
      detail::at_batch({operation_, *epoch_, batch, replica_}, [&] { add(batch); });
      late_.poll(patience());
      show(batch);
    }
    late_.settle(patience());
    return std::move(totals_);
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
    detail::forward_on_mesh(model_, replica_, {operation_, epoch_, topology},
                            [&](const DistributedBatch& batch, const detail::Tensors& columns,
                                const detail::Tensors& outputs) { take(batch, columns, outputs); });
    return end();
  }

 private:
  Deadline patience() const { return Deadline(patience_with_device(replica_.time_limit())); }
  void add(const DistributedBatch& batch) {
    auto columns = batch.host_columns(replica_);
    if (replica_.queue().on_device()) return queue(batch, std::move(columns));
    const auto parts = detail::parts_of(columns, model_.num_inputs, goals());
    count(batch, parts, outputs_of(parts));
  }

  void count(const DistributedBatch& batch, const detail::BatchParts& parts,
             const detail::Tensors& outputs) {
    totals_.add_losses(goals(), outputs, parts);
    totals_.add_metrics(goals(), outputs, parts);
    totals_.samples += batch.local_size(replica_);
  }

  void queue(const DistributedBatch& batch, detail::Tensors columns) {
    const auto host = detail::host_batch(std::move(columns), model_.num_inputs, goals());
    const auto there = detail::device_batch(replica_, host->parts);
    const detail::Tensors outputs = outputs_of(there->parts);
    const auto losses = detail::losses_on_device(goals(), outputs, host->parts, there->parts);
    detail::read_later(late_, goals(), host, losses, outputs,
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
    each.emplace_back(model, pass.operation, pass.epoch, pass.loader, replica, bar);
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
                              const data::LoaderOptions& loader_options, EvaluationBar* bar) {
  const auto epoch = detail::first_epoch(strategy, dataset);
  const auto loader =
      detail::make_loader(loader_options, strategy.world(), strategy.options().threads_per_replica);
  const detail::EvaluationMode mode(modules);
  std::shared_ptr<const mesh::Topology> topology;
  const auto own = [&](ReplicaContext& replica) {
    return Evaluation(*this, operation, epoch, loader, replica, bar).over(topology);
  };
  Totals all;
  strategy.membership().until_whole([&](std::shared_ptr<const mesh::Topology> here) {
    topology = std::move(here);
    detail::begin_epoch(*loader, *epoch, topology, nullptr, 0, epoch->num_batches());
    all = detail::sum_over_world(
        strategy, compiled->goals,
        plugin ? evaluated_by_plugin(*this, {operation, epoch, topology, loader}, bar)
               : strategy.run(own));
    throw_if_stop_requested("evaluate");
    if (all.signal != 0)
      throw Interrupted(SIGTERM,
                        "evaluate: another worker was asked to end and did not see all samples");
    return all.samples >= epoch->num_samples();
  });
  for (const std::string& sample : loader->report().replaced)
    log_once(fmt::format("{} {}", operation, sample), LogLevel::warning,
             "{}: another sample in place of {}", operation, sample);
  return detail::scores_of(all, compiled->goals);
}

Scores Model::evaluate(const data::Dataset& dataset, const data::LoaderOptions& loader,
                       int verbose) {
  if (verbose != 0 && verbose != 1)
    throw UsageError(fmt::format("evaluate: verbose is {}, must be 0 or 1", verbose));
  take_input_of(dataset);
  state_->require_compiled("evaluate");
  data::check_options(loader);
  state_->check_data("evaluate", dataset, true);
  detail::require_same_words(state_->strategy, "evaluate", detail::evaluate_words(loader));
  detail::require_same_data(state_->strategy.membership(), "evaluate", "data", dataset,
                            state_->strategy.options().seed);
  state_->refresh();
  EvaluationBar bar(verbose == 1, Clock::now());
  return state_->evaluate("evaluate", dataset, loader, &bar);
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
