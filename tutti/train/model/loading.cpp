// Model::load(): weights and rows of embedding tables, into all that has copies of them.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/types.h>

#include <exception>

#include "tutti/base/error.h"
#include "tutti/base/log.h"
#include "tutti/checkpoint/checkpoint.h"
#include "tutti/checkpoint/folder.h"
#include "tutti/ps/client/client.h"
#include "tutti/strategy/modules/whole_model.h"
#include "tutti/sync/sparse_tables.h"
#include "tutti/sync/tensors.h"
#include "tutti/train/model/detail/agreement.h"
#include "tutti/train/model/detail/model_state.h"
#include "tutti/train/model/detail/written.h"
#include "tutti/train/model/weights.h"

namespace tutti {

std::string detail::table_words(const torch::nn::Module& module) {
  const auto tables = tables_of(table_layers_of(module));
  if (tables.empty()) return "";
  std::vector<std::string> names;
  for (const ps::SparseTableSpec& table : tables) names.push_back('"' + table.name + '"');
  return fmt::format("embedding table{} {}", names.size() == 1 ? "" : "s", fmt::join(names, ", "));
}

namespace {

// Why its rows are not for these tables of a model; "": they are.
std::string why_not_for(const SparseTables& tables, const CheckpointManifest& checkpoint) {
  std::vector<std::string> words;
  for (const ps::SparseTableSpec& table : tables.specs()) words.push_back(table.words());
  if (checkpoint.tables.empty()) return "it has none";
  if (checkpoint.tables != words)
    return fmt::format("they are of other tables\n  there: {}\n  here: {}",
                       fmt::join(checkpoint.tables, "; "), fmt::join(words, "; "));
  if (const std::string rule = tables.rule_name(); checkpoint.optimizer != rule)
    return fmt::format("there they have the state of optimizer {}, here it is {}",
                       checkpoint.optimizer, rule);
  return "";
}

// Returns why the rows stay as they are; "": they are those at `path`.
std::string load_rows(const std::optional<detail::Compiled>& compiled,
                      const std::filesystem::path& path) {
  if (!is_training(path)) return "it has none that load() takes; checkpoints of fit() have them";
  if (!compiled) return "no optimizer holds them yet; compile() the model before";
  if (compiled->optimizer.updater().parts().client != nullptr)
    return "here they are on servers, which take those of their snapshots (--restore)";
  SparseTables& tables = *compiled->optimizer.tables();
  const TrainingCheckpoint checkpoint(path);
  if (auto why = why_not_for(tables, checkpoint.manifest()); !why.empty()) return why;
  try {
    tables.restore(table_rows_of(checkpoint));
  } catch (const DataError& error) {
    throw DataError(fmt::format("load {}: {}", path.string(), error.what()));
  }
  return "";
}

void load_tables(const Model::State& state, const std::filesystem::path& path) {
  const std::string tables = detail::table_words(*state.modules.module(0));
  if (tables.empty()) return;
  const std::string why = load_rows(state.compiled, path);
  if (!why.empty() && state.strategy.world().chief)
    log(LogLevel::warning, "load {}: rows of {} stay as they are: {}", path.string(), tables, why);
}

// Into the parts of a model that are on several ranks.
void load_whole(const WholeModel& whole, const std::filesystem::path& path, ModelState shapes,
                const ParameterNames& names) {
  for (NamedTensors* const tensors : {&shapes.parameters, &shapes.buffers})
    for (auto& [name, tensor] : *tensors)
      tensor = at::empty(tensor.sizes(), tensor.options().device(at::kCPU));
  load_weights(shapes, path, names);
  whole.scatter(shapes.parameters);
  whole.scatter(shapes.buffers);
}

// Servers have the values that the model was compiled with, and an optimizer's state of theirs.
bool on_servers(const std::optional<detail::Compiled>& compiled) {
  return compiled && compiled->optimizer.updater().parts().client != nullptr;
}

void require_untrained(const detail::Compiled& compiled, const std::filesystem::path& path) {
  const int64_t steps = compiled.optimizer.updater().version();
  if (steps == 0) return;
  throw UsageError(fmt::format(
      "load {}: the servers have trained this model for {} steps, and keep an optimizer's state for "
      "these weights: load into a new Model, and compile that",
      path.string(), steps));
}

}  // namespace

void Model::load(const std::filesystem::path& path) {
  State& state = *state_;
  const torch::nn::Module& first = *state.modules.module(0);
  std::exception_ptr failure;
  try {
    if (on_servers(state.compiled)) require_untrained(*state.compiled, path);
    if (const WholeModel* const whole = state.modules.whole()) {
      load_whole(*whole, path, state.shapes(), all_names(first));
    } else {
      load_weights(state_of(first), path, all_names(first));
      for (int local = 1; local < state.modules.size(); ++local)
        detail::copy_values(first, *state.modules.module(local), state.strategy.world().time_limit);
      load_tables(state, path);
    }
    state.weights_written();
  } catch (const std::exception&) {
    failure = std::current_exception();
  }
  detail::agree_on_failure(state.strategy, failure, "load " + path.string());
  if (on_servers(state.compiled)) {
    detail::own_storage(state.modules);
    state.compiled->optimizer = state.compiled->make();
  }
}

}  // namespace tutti
