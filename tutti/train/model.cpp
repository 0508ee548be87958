#include "tutti/train/model.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/types.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <exception>

#include "tutti/base/error.h"
#include "tutti/base/log.h"
#include "tutti/base/stop.h"
#include "tutti/base/suggest.h"
#include "tutti/sync/tensors.h"
#include "tutti/train/model_state.h"
#include "tutti/train/weights.h"

namespace tutti {

using detail::Totals;

namespace detail {
namespace {

/// Evaluation mode with merged buffers in every replica; afterwards each has its own buffers again,
/// and every module, whose parts may differ, the mode it was in.
class EvaluationMode {
 public:
  explicit EvaluationMode(ReplicatedModules& modules) : modules_(modules) {
    const NamedTensors merged = modules.merged_buffers();
    at::NoGradGuard no_grad;
    for (int local = 0; local < modules.size(); ++local) {
      const NamedTensors buffers = unique_buffers(*modules.module(local));
      for (size_t i = 0; i < buffers.size(); ++i) {
        own_.emplace_back(buffers[i].second, buffers[i].second.clone());
        at::Tensor buffer = buffers[i].second;
        buffer.copy_(merged[i].second);
      }
      // A module comes before its parts, so train() of a part has the last word.
      for (auto& module : modules.module(local)->modules()) {
        modes_.emplace_back(module, module->is_training());
      }
    }
    modules.train(false);
  }
  ~EvaluationMode() {
    at::NoGradGuard no_grad;
    for (auto& [buffer, value] : own_) buffer.copy_(value);
    modules_.train(modes_.front().second);  // also what replicas of a grown world begin with
    for (auto& [module, training] : modes_) module->train(training);
  }
  EvaluationMode(const EvaluationMode&) = delete;
  EvaluationMode& operator=(const EvaluationMode&) = delete;

 private:
  ReplicatedModules& modules_;
  std::vector<std::pair<at::Tensor, at::Tensor>> own_;
  std::vector<std::pair<std::shared_ptr<torch::nn::Module>, bool>> modes_;
};

/// Gives every parameter memory of its own again, as a second compile() must find it: the fused
/// step keeps those of all replicas in one storage.
void own_storage(const ReplicatedModules& modules) {
  const at::NoGradGuard no_grad;
  for (int local = 0; local < modules.size(); ++local) {
    for (auto& [name, parameter] : unique_parameters(*modules.module(local))) {
      parameter.set_data(parameter.detach().clone());
    }
  }
}

std::shared_ptr<const data::Epoch> first_epoch(const Strategy& strategy,
                                               const data::Dataset& dataset) {
  return std::make_shared<const data::Epoch>(
      dataset.epoch({.epoch = 0, .seed = strategy.options().seed}));
}

/// Outputs for rows of a dataset, by the first row.
using RowParts = std::vector<std::pair<int64_t, Tensors>>;

/// What outputs are, as a replica that has seen some knows and others are told.
struct OutputKind {
  std::vector<int64_t> shape;  ///< [samples, ...]
  at::ScalarType dtype;
};

/// Collective over workers. This output is of one kind on all replicas.
OutputKind kind_of_output(Strategy& strategy, const std::vector<RowParts>& each, size_t number) {
  constexpr size_t kMostAxes = 14;
  std::array<double, kMostAxes + 2> words{};  // dtype + 1, number of axes, axes
  for (const RowParts& parts : each) {
    if (parts.empty() || words[0] > 0) continue;
    const at::Tensor& output = parts[0].second.at(number);
    if (output.dim() < 1 || output.dim() > static_cast<int64_t>(kMostAxes))
      throw UsageError(fmt::format("predict: outputs have {} axes; expected 1 to {}, samples first",
                                   output.dim(), kMostAxes));
    words[0] = static_cast<double>(output.scalar_type()) + 1;
    words[1] = static_cast<double>(output.dim());
    std::ranges::copy(output.sizes(), words.begin() + 2);
  }
  std::vector<decltype(words)> all(each.size(), words);
  words = strategy.reduce(ReduceOp::max,
                          PerReplica<decltype(words)>(std::move(all), strategy.world().first_rank));
  const auto axes = words.begin() + 2;
  return {{axes, axes + static_cast<int64_t>(words[1])},
          static_cast<at::ScalarType>(static_cast<int>(words[0]) - 1)};
}

/// Collective over workers: some may have seen no sample.
size_t count_of_outputs(Strategy& strategy, const std::vector<RowParts>& each) {
  std::vector<double> counts;
  for (const RowParts& parts : each)
    counts.push_back(parts.empty() ? 0 : static_cast<double>(parts[0].second.size()));
  return static_cast<size_t>(strategy.reduce(
      ReduceOp::max, PerReplica<double>(std::move(counts), strategy.world().first_rank)));
}

/// All rows, -0 where this worker has none, which added to x is x; and beside each 1 where it has:
/// [rows, 1].
std::pair<at::Tensor, at::Tensor> rows_of(const std::vector<RowParts>& each, size_t output,
                                          int64_t num_rows, OutputKind kind) {
  kind.shape[0] = num_rows;
  std::pair rows(at::full(kind.shape, -0.0, kind.dtype), at::zeros({num_rows, 1}, kind.dtype));
  for (const RowParts& parts : each)
    for (const auto& [row, outputs] : parts) {
      const at::Tensor& part = outputs.at(output);
      rows.first.narrow(0, row, part.size(0)).copy_(part);
      rows.second.narrow(0, row, part.size(0)).fill_(1);
    }
  return rows;
}

/// Of one tensor a worker. Collective over workers.
at::Tensor sum_of(Strategy& strategy, const at::Tensor& own) {
  const World& world = strategy.world();
  std::vector<at::Tensor> values(static_cast<size_t>(world.local), at::full_like(own, -0.0));
  values[0] = own;
  return strategy.reduce(ReduceOp::sum,
                         PerReplica<at::Tensor>(std::move(values), world.first_rank));
}

/// All rows of one output, from all workers; undefined when some were lost on the way. Collective.
at::Tensor rows_over_world(Strategy& strategy, const World& world,
                           const std::vector<RowParts>& each, size_t output, int64_t num_rows) {
  const auto [all, filled] =
      rows_of(each, output, num_rows, kind_of_output(strategy, each, output));
  if (!world.apart) return world.one_process() ? all : sum_of(strategy, all);
  // Beside each row whether somebody has filled it.
  const at::Tensor sum = sum_of(strategy, at::cat({all.reshape({num_rows, -1}), filled}, 1));
  const int64_t width = sum.size(1) - 1;
  if (!sum.select(1, width).eq(1).all().item<bool>()) return {};
  return sum.narrow(1, 0, width).reshape(all.sizes());
}

void require_one_output(size_t outputs) {
  if (outputs != 1)
    throw UsageError(fmt::format("predict: the model has {} outputs; use predict_all()", outputs));
}

at::Tensor only_output(Tensors outputs) {
  require_one_output(outputs.size());
  return std::move(outputs.front());
}

}  // namespace

double sum_over_workers(Strategy& strategy, double own) {
  const World& world = strategy.world();
  std::vector<double> each(static_cast<size_t>(world.local), 0.0);
  each[0] = own;
  return strategy.reduce(ReduceOp::sum, PerReplica<double>(std::move(each), world.first_rank));
}

void agree_on_failure(Strategy& strategy, const std::exception_ptr& own, const std::string& what) {
  const World& world = strategy.world();
  double failures = own ? 1 : 0;
  if (world.apart ? strategy.can_meet() : !world.one_process())
    failures = sum_over_workers(strategy, failures);
  if (own) std::rethrow_exception(own);
  if (failures > 0) {
    throw Error(fmt::format("{}: failed on another worker; its own message says why", what));
  }
}

}  // namespace detail

// ---- state ----

detail::Tensors detail::Compiled::outputs(const Forward& forward, at::TensorList inputs) const {
  if (precision == Precision::float32) return forward(inputs);
  const Autocast autocast(precision);
  Tensors made = forward(inputs);
  for (at::Tensor& output : made)
    if (at::isReducedFloatingType(output.scalar_type())) output = output.to(at::kFloat);
  return made;
}

Model::State::State(Strategy strategy_in, std::function<detail::ErasedModel()> factory)
    : strategy(std::move(strategy_in)),
      forwards(std::make_shared<std::unordered_map<const torch::nn::Module*, detail::Forward>>()),
      modules(strategy, [factory = std::move(factory), known = forwards] {
        detail::ErasedModel made = factory();
        if (!made.module) throw UsageError("Model: the factory returned no module");
        known->insert_or_assign(made.module.get(), made.forward);
        return made.module;
      }) {
  if (const auto* known = dynamic_cast<const nn::GraphModule*>(modules.module(0).get())) {
    graph = known->graph();
    num_inputs = std::ssize(graph->inputs());
  }
}

const detail::Forward& Model::State::forward(int local_rank) const {
  return forwards->at(modules.module(local_rank).get());
}

detail::Tensors Model::State::outputs(int local_rank, at::TensorList inputs) const {
  return compiled ? compiled->outputs(forward(local_rank), inputs) : forward(local_rank)(inputs);
}

detail::Compiled& Model::State::require_compiled(std::string_view operation) {
  if (!compiled) {
    throw UsageError(fmt::format("{}: call compile() first, with optimizer and loss", operation));
  }
  return *compiled;
}

void Model::State::require_whole() const {
  if (!compiled) return;
  Updater& updater = compiled->optimizer.updater();
  updater.complete();
  updater.require_whole();
}

void Model::State::check_data(std::string_view operation, const data::Dataset& dataset,
                              bool needs_target) const {
  const auto& columns = dataset.columns();
  if (dataset.global_batch_size() < 1) {
    throw UsageError(fmt::format("{}: the dataset has no batches; call batch(n) last", operation));
  }
  if (dataset.num_samples() < 1) {
    throw UsageError(fmt::format("{}: the dataset has no samples", operation));
  }
  const auto inputs = static_cast<size_t>(num_inputs);
  const size_t goals = needs_target ? compiled->goals.size() : 0;
  if (columns.size() < inputs ||
      (needs_target && columns.size() - inputs != goals && columns.size() - inputs != goals + 1)) {
    const std::string expected =
        needs_target ? fmt::format("{} of inputs, {} of targets and maybe weights of samples",
                                   num_inputs, goals)
                     : fmt::format("{} of inputs", num_inputs);
    throw UsageError(fmt::format("{}: the dataset has {} columns, expected {}", operation,
                                 columns.size(), expected));
  }
  if (const auto& last = columns.back(); needs_target && columns.size() > inputs + goals &&
                                         (last.dtype != DType::float32 || !last.shape.empty())) {
    throw UsageError(
        fmt::format("{}: the last column is {} {} a sample, expected a weight: float32 []",
                    operation, name_of(last.dtype), nn::to_string(last.shape)));
  }
  if (!graph) return;
  for (size_t i = 0; i < inputs; ++i) {
    const nn::Port& port = graph->inputs()[i];
    if (columns[i].shape != graph->shape_of(port)) {
      throw UsageError(fmt::format("{}: the dataset's samples have shape {}, the model takes {}{}",
                                   operation, nn::to_string(columns[i].shape),
                                   nn::to_string(graph->shape_of(port)),
                                   inputs == 1 ? "" : fmt::format(" as input \"{}\"", port.name)));
    }
  }
  if (needs_target && goals == 1 && dataset.num_classes() > graph->output_shape().back()) {
    throw UsageError(fmt::format("{}: the dataset has {} classes, the model gives {} outputs",
                                 operation, dataset.num_classes(), graph->output_shape().back()));
  }
}

Scores Model::State::evaluate(const data::Dataset& dataset) {
  const detail::Compiled& made = *compiled;
  const auto epoch = detail::first_epoch(strategy, dataset);
  const detail::EvaluationMode mode(modules);
  World world;
  const auto own = [&](ReplicaContext& replica) {
    const at::NoGradGuard no_grad;
    const detail::Forward& apply = forward(replica.local_rank());
    Totals totals;
    for (int64_t step = 0; step < epoch->num_batches(); ++step) {
      totals.signal = stop_requested();
      if (totals.signal != 0) break;
      const DistributedBatch batch(epoch, step, world);
      if (batch.local_size(replica) == 0) continue;
      const auto columns = batch.columns(replica);
      const auto parts = detail::parts_of(columns, num_inputs, made.goals);
      const detail::Tensors outputs = made.outputs(apply, parts.inputs);
      totals.add_losses(made.goals, outputs, parts);
      totals.add_metrics(made.goals, outputs, parts);
      totals.samples += batch.local_size(replica);
    }
    return totals;
  };
  Totals all;
  do {  // again without those who were lost on the way
    world = strategy.those_here();
    all = detail::sum_over_world(strategy, made.goals, strategy.run(own));
    throw_if_stop_requested("evaluate");
    if (all.signal != 0)
      throw Interrupted(SIGTERM,
                        "evaluate: another worker was asked to end and did not see all samples");
  } while (world.apart && all.samples < epoch->num_samples());
  return detail::scores_of(all, made.goals);
}

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

// ---- model ----

Model::Model(Strategy strategy, ErasedFactory factory)
    : state_(std::make_shared<State>(std::move(strategy), std::move(factory))) {}

void Model::compile(CompileOptions options) {
  State& state = *state_;
  require_precision(options.precision, "cpu");  // where replicas compute
  std::optional<optim::LossScale> scale;
  if (options.loss_scaling) scale.emplace(*options.loss_scaling);
  std::optional<int> num_states;
  if (const auto* recipe = std::get_if<optim::Recipe>(&options.optimizer))
    num_states = recipe->rule().num_states();
  detail::Goals goals = detail::goals_of(options, state.graph);
  if (!state.graph) state.num_inputs = options.num_inputs;
  if (state.compiled) detail::own_storage(state.modules);
  state.compiled.reset();
  Optimizer optimizer = std::visit(
      [&](const auto& choice) { return Optimizer(state.modules, choice); }, options.optimizer);
  if (scale) optimizer.scale_losses(*scale);
  state.compiled.emplace(detail::Compiled{std::move(optimizer), std::move(goals),
                                          std::move(options.learning_rate), options.precision,
                                          num_states});
}

Scores Model::evaluate(const data::Dataset& dataset) {
  state_->require_compiled("evaluate");
  state_->check_data("evaluate", dataset, true);
  state_->compiled->optimizer.updater().refresh();
  return state_->evaluate(dataset);
}

std::vector<at::Tensor> Model::predict_all(const std::vector<at::Tensor>& inputs) {
  state_->require_whole();
  const detail::EvaluationMode mode(state_->modules);
  const at::NoGradGuard no_grad;
  return state_->outputs(0, inputs);
}

at::Tensor Model::predict(const at::Tensor& inputs) {
  if (state_->graph) detail::require_one_output(state_->graph->outputs().size());
  return detail::only_output(predict_all(std::vector{inputs}));
}

at::Tensor Model::predict(const data::Dataset& dataset) {
  if (state_->graph) detail::require_one_output(state_->graph->outputs().size());
  return detail::only_output(predict_all(dataset));
}

std::vector<at::Tensor> Model::predict_all(const data::Dataset& dataset) {
  State& state = *state_;
  state.check_data("predict", dataset, false);
  const auto epoch = detail::first_epoch(state.strategy, dataset);
  World world = state.strategy.those_here();
  const int64_t batch_rows = dataset.global_batch_size();
  const auto inputs = static_cast<size_t>(state.num_inputs);
  const detail::EvaluationMode mode(state.modules);
  const auto own = [&](ReplicaContext& replica) {
    const at::NoGradGuard no_grad;
    detail::RowParts parts;
    for (int64_t step = 0; step < epoch->num_batches(); ++step) {
      const DistributedBatch batch(epoch, step, world);
      if (batch.local_size(replica) == 0) continue;
      const auto columns = batch.columns(replica);
      parts.emplace_back(
          step * batch_rows + batch.first_row(replica),
          state.outputs(replica.local_rank(), at::TensorList(columns).slice(0, inputs)));
    }
    return parts;
  };
  while (true) {
    const auto each = state.strategy.run(own).values();
    const size_t outputs = detail::count_of_outputs(state.strategy, each);
    detail::Tensors all;
    bool complete = true;
    for (size_t output = 0; output < outputs; ++output) {
      all.push_back(
          detail::rows_over_world(state.strategy, world, each, output, epoch->num_samples()));
      complete = complete && all.back().defined();
    }
    if (complete) return all;
    world = state.strategy.those_here();
  }
}

namespace {

void warn_of_tables(const torch::nn::Module& module, const std::filesystem::path& path) {
  const auto tables = tables_of(table_layers_of(module));
  if (tables.empty()) return;
  std::vector<std::string> names;
  for (const ps::SparseTableSpec& table : tables) names.push_back('"' + table.name + '"');
  log(LogLevel::warning,
      "{} has no rows of embedding table{} {}: they are on servers, whose snapshots keep them "
      "(--snapshots), or in this process alone",
      path.string(), names.size() == 1 ? "" : "s", fmt::join(names, ", "));
}

}  // namespace

void Model::State::save(const std::filesystem::path& path) {
  State& state = *this;
  if (state.compiled) state.compiled->optimizer.updater().refresh();
  state.require_whole();
  const ModelState weights{unique_parameters(*state.modules.module(0)),
                           state.modules.merged_buffers()};
  std::exception_ptr failure;
  state.strategy.by_chief([&] {
    try {
      warn_of_tables(*state.modules.module(0), path);
      save_weights(weights, path);
    } catch (const Error&) {
      failure = std::current_exception();
    }
  });
  detail::agree_on_failure(state.strategy, failure, "save " + path.string());
}

void Model::save(const std::filesystem::path& path) { state_->save(path); }

void Model::load(const std::filesystem::path& path) {
  State& state = *state_;
  const torch::nn::Module& first = *state.modules.module(0);
  std::exception_ptr failure;
  try {
    load_weights(state_of(first), path, all_names(first));
    for (int local = 1; local < state.modules.size(); ++local) {
      detail::copy_values(first, *state.modules.module(local));
    }
  } catch (const Error&) {
    failure = std::current_exception();
  }
  detail::agree_on_failure(state.strategy, failure, "load " + path.string());
}

std::string Model::weights_sha256() {
  state_->require_whole();
  return tutti::weights_sha256(
      {unique_parameters(*state_->modules.module(0)), state_->modules.merged_buffers()});
}

Strategy Model::strategy() const { return state_->strategy; }
const ReplicatedModules& Model::modules() const noexcept { return state_->modules; }
Optimizer& Model::optimizer() { return state_->require_compiled("optimizer").optimizer; }

}  // namespace tutti
