#include "tutti/train/model/model.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/types.h>

#include <algorithm>
#include <array>
#include <exception>
#include <numeric>

#include "tutti/base/error.h"
#include "tutti/base/log.h"
#include "tutti/checkpoint/checkpoint.h"
#include "tutti/checkpoint/folder.h"
#include "tutti/exported/module.h"
#include "tutti/strategy/choice/choice.h"
#include "tutti/strategy/modules/whole_model.h"
#include "tutti/sync/replicated/whole_rules.h"
#include "tutti/sync/sparse_tables.h"
#include "tutti/sync/tensors.h"
#include "tutti/train/model/detail/adapters.h"
#include "tutti/train/model/detail/agreement.h"
#include "tutti/train/model/detail/by_plugin.h"
#include "tutti/train/model/detail/graph_file.h"
#include "tutti/train/model/detail/model_state.h"
#include "tutti/train/model/detail/settings.h"
#include "tutti/train/model/detail/written.h"
#include "tutti/train/model/weights.h"
#include "tutti/train/watch/detail/watcher.h"

namespace tutti {

namespace detail {

void own_storage(const ReplicatedModules& modules) {
  const at::NoGradGuard no_grad;
  for (int local = 0; local < modules.size(); ++local) {
    for (auto& [name, parameter] : unique_parameters(*modules.module(local))) {
      parameter.set_data(parameter.detach().clone());
    }
  }
}

namespace {

// Where a step is more than one forward of a replica's own module.
void require_steps_of_own(const CompileOptions& options, const Model::State& state) {
  if (!options.train_step && !options.test_step) return;
  const char* why = nullptr;
  if (state.plugin) why = "strategy tpu compiles its steps of a graph and a loss";
  if (state.modules.whole() != nullptr || state.laid_out->in_parts())
    why = "the model is dealt out to several ranks, or in parts, none of which has a whole forward";
  if (state.strategy.options().step_graph)
    why = "with step_graph the device repeats a step, and does not call functions";
  if (why != nullptr)
    throw UsageError(
        fmt::format("compile: train_step and test_step cannot be called here: {}; use a loss "
                    "(CompileOptions::loss), or another strategy",
                    why));
}

void require_no_function_in_step_graph(const Model::State& state) {
  if (!state.strategy.options().step_graph || !state.graph) return;
  for (const nn::Node& node : state.graph->nodes())
    if (const auto* const lambda = std::get_if<nn::op::Lambda>(&node.op))
      throw UsageError(fmt::format(
          "compile: layer \"{}\" is a function of the program's own ({}), and with step_graph the "
          "device repeats a step without calling it; train without, or take layers of nn",
          node.name, lambda->what));
}

// Throws before anything changes.
void require_measures(const Strategy& strategy, const CompileOptions& options) {
  const World& world = strategy.world();
  const auto* const factory = std::get_if<TorchOptimizerFactory>(&options.optimizer);
  require_together(strategy.options(),
                   {.torch_optimizer = factory != nullptr,
                    .more_than_a_rule = factory != nullptr ? more_than_a_rule(*factory) : "",
                    .measures = options.measures},
                   {}, {.gpus = world.on_devices()});
  require_measurable(options.measures, world);
}

std::optional<LargeBatchParts> large_batch_of(const CompileOptions& options) {
  if (!options.large_batch) return std::nullopt;
  require_valid(*options.large_batch);
  if (options.learning_rate && options.large_batch->base_rate > 0)
    throw UsageError(fmt::format(
        "compile: large_batch: base_rate = {} beside learning_rate, \"{}\": both are rates of the "
        "base batch; give one of them",
        options.large_batch->base_rate, options.learning_rate->name()));
  const auto* const recipe = std::get_if<optim::Recipe>(&options.optimizer);
  if (recipe == nullptr) {
    const std::string got = more_than_a_rule(std::get<TorchOptimizerFactory>(options.optimizer));
    throw UsageError(
        fmt::format("compile: large_batch: it changes rate and weight decay of tutti's optimizers "
                    "(optim::sgd() and so on), got {}",
                    got.empty() ? "a torch optimizer" : got));
  }
  return LargeBatchParts{
      .options = *options.large_batch, .rule = recipe->rule(), .base = options.learning_rate};
}

}  // namespace

double sum_over_workers(Strategy& strategy, double own) {
  const std::vector<double> all = strategy.membership().all_of(own);
  return std::accumulate(all.begin(), all.end(), 0.0);
}

void agree_on_failure(Strategy& strategy, const std::exception_ptr& own, const std::string& what) {
  strategy.membership().agree_on_failure(own, what);
}

}  // namespace detail

// ---- state ----

detail::Tensors detail::Compiled::outputs(const Forward& forward, at::TensorList inputs) const {
  if (precision == Precision::float32) return forward(inputs);
  const bool on_cpu = inputs.empty() || inputs[0].is_cpu();
  const Autocast autocast(precision, on_cpu ? "cpu" : "cuda");
  Tensors made = forward(inputs);
  for (at::Tensor& output : made)
    if (at::isReducedFloatingType(output.scalar_type())) output = output.to(at::kFloat);
  return made;
}

using FirstModule = std::weak_ptr<torch::nn::Module>;

Model::State::State(Strategy strategy_in, std::function<detail::ErasedModel()> factory,
                    const parallel::ModelLayout& layout)
    : strategy(std::move(strategy_in)),
      laid_out(std::make_shared<detail::LaidOut>(strategy, layout)),
      forwards(std::make_shared<std::unordered_map<const torch::nn::Module*, detail::Forward>>()),
      modules(detail::dealt_out(strategy, laid_out, std::move(factory),
                                [known = forwards, first = std::make_shared<FirstModule>()](
                                    const detail::ErasedModel& made) {
                                  known->insert_or_assign(made.module.get(), made.forward);
                                  if (const auto lead =
                                          first->lock())  // load() may have changed it
                                    detail::copy_base(*lead, *made.module, kDefaultTimeLimit);
                                  else
                                    *first = made.module;
                                })) {
  if (laid_out->graph()) {
    graph = laid_out->graph();
  } else if (const auto* known = dynamic_cast<const nn::GraphModule*>(modules.module(0).get())) {
    graph = known->graph();
  }
  if (graph) num_inputs = std::ssize(graph->inputs());
  if (const auto* known = exported()) num_inputs = std::ssize(known->input_names());
  if (strategy.world().plugin == nullptr) return;
  if (!graph) detail::throw_no_graph();
  if (detail::adapted(*modules.module(0)) != nullptr)
    throw UsageError(
        "Model: strategy tpu compiles a graph with the graph's own weights, and has no adapters: "
        "train these under another strategy");
  plugin = std::make_shared<detail::PluginModel>(*graph, modules);
}

const ExportedModule* Model::State::exported() const {
  if (const auto* part = laid_out->exported()) return part;
  return dynamic_cast<const ExportedModule*>(modules.module(0).get());
}

const detail::Forward& Model::State::forward(int local_rank) const {
  return forwards->at(modules.module(local_rank).get());
}

detail::Tensors Model::State::outputs(int local_rank, at::TensorList inputs) const {
  if (plugin) return detail::outputs_by_plugin(*this, inputs);
  return compiled ? compiled->outputs(forward(local_rank), inputs) : forward(local_rank)(inputs);
}

detail::Compiled& Model::State::require_compiled(std::string_view operation) {
  if (!compiled) {
    throw UsageError(fmt::format("{}: call compile() first, with optimizer and loss", operation));
  }
  return *compiled;
}

NamedTensors Model::State::parameters() const {
  const WholeModel* const whole = modules.whole();
  return whole != nullptr ? whole->gather_parameters() : unique_parameters(*modules.module(0));
}

ModelState Model::State::weights() const {
  const auto* const own = detail::adapted(*modules.module(0));
  return {own != nullptr ? own->merged_parameters() : parameters(), modules.merged_buffers()};
}

ModelState Model::State::shapes() const {
  const WholeModel* const whole = modules.whole();
  if (whole == nullptr) return state_of(*modules.module(0));
  return {WholeModel::without_values(whole->parameters()),
          WholeModel::without_values(whole->buffers())};
}

void Model::State::refresh() const {
  if (!compiled) return;
  if (auto* const late = compiled->optimizer.updater().parts().late) late->refresh();
}

void Model::State::require_whole() const {
  if (!compiled) return;
  Updater& updater = compiled->optimizer.updater();
  if (auto* const late = updater.parts().late) late->complete();
  updater.require_whole();
}

namespace {

/// In the words of whoever makes the model.
std::string shape_to_ask_for(const nn::Shape& shape) {
  return fmt::format(
      "; make it for [{}]: `input` of a network in models, nn::input() of a graph; photos come in "
      "the size that is asked for (--image-size)",
      fmt::join(shape, ", "));
}

}  // namespace

namespace {

/// What stands behind inputs and targets: weights of samples, or a mask.
void check_last_column(std::string_view operation, const std::vector<data::Column>& columns,
                       size_t inputs, const detail::Goals& goals) {
  const data::Column& last = columns.back();
  if (last.dtype == DType::float32 && last.shape.empty()) return;
  if (last.dtype != DType::boolean)
    throw UsageError(fmt::format(
        "{}: the last column is {} {} a sample, expected a weight: float32 [], or a mask: bool, "
        "one for each label",
        operation, name_of(last.dtype), nn::to_string(last.shape)));
  for (size_t i = 0; i < goals.size(); ++i) {
    const data::Column& target = columns[inputs + i];
    if (target.shape != last.shape)
      throw UsageError(fmt::format(
          "{}: the last column is a mask of {}, column \"{}\" is {}; expected one bool "
          "for each label",
          operation, data::shape_words(last.shape), target.name, data::shape_words(target.shape)));
    if (is_floating(target.dtype) || target.dtype == DType::boolean)
      throw UsageError(fmt::format(
          "{}: the last column is a mask, and column \"{}\" is {}; expected labels, int64, some of "
          "which do not count",
          operation, target.name, name_of(target.dtype)));
    if (!goals[i].loss.kernel().ignored_label())
      throw UsageError(fmt::format(
          "{}: the last column is a mask, and loss {} ignores no label; set it, to one that is no "
          "class: .ignore_label = -100",
          operation, goals[i].loss.name()));
  }
}

/// Columns of inputs against what a .pt2 file was exported for.
void check_exported_columns(std::string_view operation, const std::vector<data::Column>& columns,
                            const ExportedModule& module) {
  const auto inputs = module.input_shapes();
  for (size_t i = 0; i < inputs.size(); ++i) {
    const data::Column& column = columns[i];
    const auto& sizes = inputs[i].sizes;
    bool fits = name_of(column.dtype) == pt2::name_of(inputs[i].element) &&
                sizes.size() == column.shape.size() + 1;
    for (size_t d = 1; fits && d < sizes.size(); ++d)
      fits = !sizes[d].is_known() || sizes[d].value == column.shape[d - 1];
    if (!fits)
      throw UsageError(fmt::format(
          "{}: column {} (\"{}\") is {} {} a sample, the model was exported for batches of {} as "
          "input \"{}\"",
          operation, i, column.name, name_of(column.dtype), nn::to_string(column.shape),
          inputs[i].words, module.input_names()[i]));
  }
}

}  // namespace

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
  if (needs_target && columns.size() > inputs + goals)
    check_last_column(operation, columns, inputs, compiled->goals);
  if (const auto* known = exported()) check_exported_columns(operation, columns, *known);
  if (!graph) return;
  for (size_t i = 0; i < inputs; ++i) {
    const nn::Port& port = graph->inputs()[i];
    const DType wanted = std::get<nn::op::Input>(graph->nodes()[size_t(port.node)].op).dtype;
    if (!is_floating(wanted) && columns[i].dtype != wanted)
      throw UsageError(fmt::format("{}: column {} (\"{}\") is {}, the model takes {}", operation, i,
                                   columns[i].name, name_of(columns[i].dtype), name_of(wanted)));
    if (is_floating(wanted) && !is_floating(columns[i].dtype))
      throw UsageError(fmt::format(
          "{}: column {} (\"{}\") is {}: convert to float32, which the layers of a graph take",
          operation, i, columns[i].name, name_of(columns[i].dtype)));
    if (columns[i].shape != graph->shape_of(port)) {
      throw UsageError(fmt::format("{}: the dataset's samples have shape {}, the model takes {}{}",
                                   operation, nn::to_string(columns[i].shape),
                                   nn::to_string(graph->shape_of(port)),
                                   inputs == 1 ? shape_to_ask_for(columns[i].shape)
                                               : fmt::format(" as input \"{}\"", port.name)));
    }
  }
  if (needs_target && goals == 1 && dataset.num_classes() > graph->output_shape().back()) {
    throw UsageError(fmt::format("{}: the dataset has {} classes, the model gives {} outputs",
                                 operation, dataset.num_classes(), graph->output_shape().back()));
  }
}

// ---- model ----

Model::Model(Strategy strategy, ErasedFactory factory, const parallel::ModelLayout& layout)
    : state_([strategy = std::move(strategy), factory = std::move(factory),
              layout = parallel::ModelLayout(layout)](const data::Dataset* data) mutable {
        if (data != nullptr) layout.input = parallel::sample_of(*data);
        return std::make_shared<State>(strategy, factory, layout);
      }) {}

void Model::take_input_of(const data::Dataset& data) {
  if (state_.made()) return;
  state_.make(data);
  if (auto asked = std::exchange(state_.asked(), std::nullopt)) compile(*std::move(asked));
}

void Model::compile(CompileOptions options) {
  if (!state_.made()) {
    state_.asked() = std::move(options);
    return;
  }
  State& state = *state_;
  const auto& queues = state.strategy.world().queues;
  const bool on_gpus = !queues.empty() && std::ranges::all_of(queues, &DeviceQueue::on_device);
  require_together(state.strategy.options(),
                   {.precision = std::string(name_of(options.precision)),
                    .steps_per_execution = options.steps_per_execution},
                   {}, {.gpus = on_gpus});
  detail::require_steps_per_execution(options.steps_per_execution);
  std::optional<optim::LossScale> scale;
  if (options.loss_scaling) scale.emplace(*options.loss_scaling);
  std::optional<int> num_states;
  if (const auto* recipe = std::get_if<optim::Recipe>(&options.optimizer))
    num_states = recipe->rule().num_states();
  detail::Goals goals = detail::goals_of(options, state.graph, state.exported());
  detail::require_steps_of_own(options, state);
  detail::require_no_function_in_step_graph(state);
  detail::require_done_on_devices(goals, state.strategy);
  auto large_batch = detail::large_batch_of(options);
  if (first_of(options.measures) != nullptr) detail::require_measures(state.strategy, options);
  std::string words;
  if (!detail::is_alone(state.strategy)) words = detail::compile_words(options, goals, state);
  detail::require_same_words(state.strategy, "compile", words);
  if (!state.graph && state.exported() == nullptr) state.num_inputs = options.num_inputs;
  std::unique_ptr<detail::PluginModel::Made> prepared;
  if (state.plugin && num_states)
    prepared = state.plugin->prepared(detail::training_of(
        goals, std::get<optim::Recipe>(options.optimizer).rule(), options.precision));
  if (state.plugin && state.compiled) state.require_whole();
  if (state.plugin) state.plugin->forget_compiled();
  if (state.compiled) detail::own_storage(state.modules);
  state.compiled.reset();
  if (large_batch) options.optimizer = state.changed_for(*large_batch, options.optimizer);
  const auto make = [&modules = state.modules, choice = options.optimizer, scale] {
    Optimizer optimizer =
        std::visit([&](const auto& one) { return Optimizer(modules, one); }, choice);
    if (scale) optimizer.scale_losses(*scale);
    return optimizer;
  };
  state.compiled.emplace(detail::Compiled{
      make(), make, std::move(goals), std::move(options.learning_rate), options.precision,
      detail::optimizer_words(options.optimizer), std::move(words), num_states,
      std::move(large_batch), options.measures, options.steps_per_execution,
      std::move(options.train_step), std::move(options.test_step), options.loss.has_value()});
  if (state.plugin) state.plugin->compile(std::move(prepared), state.compiled->optimizer.updater());
}

OptimizerChoice Model::State::changed_for(detail::LargeBatchParts& parts,
                                          const OptimizerChoice& choice) const {
  optim::Recipe recipe = std::get<optim::Recipe>(choice);
  if (!parts.options.decay_norms_and_biases)
    recipe = detail::spared(recipe, shapes().parameters, parts.words.emplace_back());
  if (parts.options.zero_last_norms) parts.words.push_back(detail::zero_last_norms(graph, modules));
  return recipe;
}

namespace {

void warn_of_tables(const torch::nn::Module& module, const std::filesystem::path& path) {
  const std::string tables = detail::table_words(module);
  if (tables.empty()) return;
  log(LogLevel::warning,
      "{} has no rows of {}: they are on servers, whose snapshots keep them "
      "(--snapshots), or in this process, whose checkpoints do",
      path.string(), tables);
}

}  // namespace

void Model::State::save(const std::filesystem::path& path) {
  State& state = *this;
  state.refresh();
  state.require_whole();
  const ModelState weights = state.weights();
  std::exception_ptr failure;
  state.strategy.by_chief([&] {
    try {
      warn_of_tables(*state.modules.module(0), path);
      save_weights(weights, path);
      if (std::filesystem::is_regular_file(path))
        detail::write_graph_file(detail::graph_file_of(path), state.graph);
    } catch (const std::exception&) {
      failure = std::current_exception();
    }
  });
  detail::agree_on_failure(state.strategy, failure, "save " + path.string());
}

void Model::save(const std::filesystem::path& path) { state_->save(path); }

void Model::State::weights_written() {
  laid_out->weights_changed();
  if (!compiled) return;
  if (auto* const copies = compiled->optimizer.updater().parts().copies) copies->take_over();
}

std::string Model::weights_sha256() {
  state_->require_whole();
  return tutti::weights_sha256(state_->weights());
}

Strategy Model::strategy() const { return state_->strategy; }
const ReplicatedModules& Model::modules() const { return state_->modules; }
Optimizer& Model::optimizer() { return state_->require_compiled("optimizer").optimizer; }

}  // namespace tutti
