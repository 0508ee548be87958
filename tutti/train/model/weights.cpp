#include "tutti/train/model/weights.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <map>
#include <set>

#include "tutti/base/error.h"
#include "tutti/base/json.h"
#include "tutti/base/log.h"
#include "tutti/base/sha256.h"
#include "tutti/base/suggest.h"
#include "tutti/checkpoint/checkpoint.h"
#include "tutti/checkpoint/folder.h"
#include "tutti/data/safetensors.h"
#include "tutti/nn/adapted.h"
#include "tutti/ps/client/client.h"
#include "tutti/ps/snapshot/snapshot.h"
#include "tutti/queues/host_copies.h"
#include "tutti/queues/upload.h"
#include "tutti/strategy/modules/whole_model.h"
#include "tutti/sync/sparse_tables.h"
#include "tutti/sync/tensors.h"
#include "tutti/train/model/detail/adapters.h"
#include "tutti/train/model/detail/agreement.h"
#include "tutti/train/model/detail/left_out.h"
#include "tutti/train/model/detail/model_state.h"
#include "tutti/train/model/detail/written.h"

namespace tutti {

namespace {

constexpr size_t kDifferencesShown = 12;  // one screen; a whole wrong model has hundreds

/// On the CPU, each in a row in memory.
NamedTensors plain(NamedTensors tensors) {
  std::vector<at::Tensor> values;
  for (const auto& [name, tensor] : tensors) values.push_back(tensor.detach());
  values = on_host(values, Deadline(kDefaultTimeLimit), "the weights that are read");
  for (size_t i = 0; i < tensors.size(); ++i) tensors[i].second = values[i].contiguous();
  return tensors;
}

std::string words(DType dtype, at::IntArrayRef shape) {
  return fmt::format("{} [{}]", name_of(dtype), fmt::join(shape, ", "));
}

void add_sorted(Sha256& sha, NamedTensors tensors) {
  std::sort(tensors.begin(), tensors.end(),
            [](const auto& a, const auto& b) { return a.first < b.first; });
  for (const auto& [name, values] : plain(std::move(tensors))) {
    const MemorySpan span = span_of(values);
    sha.update(fmt::format("{} {}\n", name, words(span.dtype, values.sizes())));
    sha.update(span.data, static_cast<size_t>(span.num_bytes()));
  }
}

NamedTensors all_of(const ModelState& state) {
  NamedTensors all = state.parameters;
  all.insert(all.end(), state.buffers.begin(), state.buffers.end());
  return all;
}

std::string nearest_words(const std::string& name, const std::vector<std::string>& known) {
  const std::string near = nearest(name, known);
  return near.empty() ? "" : fmt::format(" (the nearest there is \"{}\")", near);
}

// Of a safetensors file, a checkpoint, or a snapshot of parameter servers; the last two are
// folders.
data::Safetensors arrays_at(const std::filesystem::path& path) {
  if (!std::filesystem::is_directory(path)) return data::read_safetensors(path);
  if (is_training(path)) {
    const TrainingCheckpoint checkpoint(path);
    checkpoint.verify();
    data::Safetensors file{.arrays = weights_of(checkpoint), .metadata = {}};
    const auto& kept = checkpoint.manifest().kept;
    // In a loop of one's own it is the model that says it, under its name.
    for (const std::string& part :
         {std::string(detail::kAdaptersPart), model_of_loop(checkpoint.manifest())})
      if (const auto words = kept.find(part); words != kept.end())
        file.metadata.emplace(detail::kAdaptersPart, words->second);
    return file;
  }
  return {.arrays = ps::Snapshot(path).variables(), .metadata = {}};
}

bool same_values(const Array& a, const Array& b) {
  if (a.dtype() != b.dtype() || a.shape() != b.shape()) return false;
  return a.num_bytes() == 0 ||
         std::memcmp(a.data(), b.data(), static_cast<size_t>(a.num_bytes())) == 0;
}

/// Parameters that are one in the model, and two of unlike values in the file: one would be lost.
std::vector<std::string> untied(const data::Safetensors& file, const ParameterNames& names) {
  std::vector<std::string> found;
  for (const auto& [name, first] : names) {
    const Array* const own = file.find(name);
    const Array* const loaded = name == first ? nullptr : file.find(first);
    if (own == nullptr || loaded == nullptr || same_values(*own, *loaded)) continue;
    found.push_back(fmt::format(
        "\"{}\" has other values than \"{}\" in the file, and they are one parameter in the "
        "model, tied; load it into a model that does not tie them, or leave \"{}\" out of the file",
        name, first, name));
  }
  return found;
}

/// Every way in which the file does not fit the model, one sentence each.
std::vector<std::string> differences(const NamedTensors& wanted, const data::Safetensors& file,
                                     const ParameterNames& also) {
  std::set<std::string> in_model;
  for (const auto& [name, tensor] : wanted) in_model.insert(name);
  // A name that one side lacks is most likely one that only the other side has.
  std::vector<std::string> only_in_file;
  std::vector<std::string> only_in_model;
  for (const auto& array : file.arrays) {
    if (!in_model.contains(array.name) && !also.contains(array.name)) {
      only_in_file.push_back(array.name);
    }
  }
  for (const auto& [name, tensor] : wanted) {
    if (file.find(name) == nullptr) only_in_model.push_back(name);
  }

  std::vector<std::string> found;
  for (const auto& [name, tensor] : wanted) {
    const std::string own = words(dtype_of(tensor.scalar_type()), tensor.sizes());
    const Array* array = file.find(name);
    if (array == nullptr) {
      found.push_back(fmt::format("\"{}\", {} in the model, is not in the file{}", name, own,
                                  nearest_words(name, only_in_file)));
      continue;
    }
    const std::string theirs = words(array->dtype(), array->shape());
    if (theirs != own) {
      found.push_back(fmt::format("\"{}\" is {} in the file, {} in the model", name, theirs, own));
    }
  }
  for (const auto& name : only_in_file) {
    found.push_back(
        fmt::format("\"{}\" is not in the model{}", name, nearest_words(name, only_in_model)));
  }
  for (std::string& two : untied(file, also)) found.push_back(std::move(two));
  return found;
}

}  // namespace

ModelState state_of(const torch::nn::Module& module) {
  return {unique_parameters(module), unique_buffers(module)};
}

std::string weights_sha256(const ModelState& state) {
  Sha256 sha;
  add_sorted(sha, state.parameters);
  add_sorted(sha, state.buffers);
  return sha.hex();
}

namespace {

void write_weights(const ModelState& state, const std::filesystem::path& path,
                   const std::map<std::string, std::string>& metadata) {
  std::vector<data::NamedArray> arrays;
  for (const auto& [name, tensor] : plain(all_of(state))) {
    const auto values = std::make_shared<at::Tensor>(tensor);
    const MemorySpan span = span_of(*values);
    arrays.push_back({name, Array::view(span.data, span.dtype, values->sizes().vec(), values)});
  }
  data::write_safetensors(path, arrays, metadata);
}

}  // namespace

void save_weights(const ModelState& state, const std::filesystem::path& path) {
  write_weights(state, path, {{"format", "pt"}});
}

void require_fit(const ModelState& state, const data::Safetensors& file,
                 const ParameterNames& names, const std::string& what) {
  auto found = differences(all_of(state), file, names);
  if (found.empty()) return;
  const size_t all = found.size();
  if (all > kDifferencesShown) {
    found.resize(kDifferencesShown);
    found.push_back(fmt::format("and {} more", all - kDifferencesShown));
  }
  throw DataError(
      fmt::format("{}: the file does not fit the model\n  {}", what, fmt::join(found, "\n  ")));
}

namespace {

/// Those that `out` does not name.
NamedTensors without(NamedTensors tensors, const std::set<std::string>& out) {
  std::erase_if(tensors, [&](const auto& item) { return out.contains(item.first); });
  return tensors;
}

LoadReport take_weights(const ModelState& state, data::Safetensors file,
                        const ParameterNames& names, const std::filesystem::path& path,
                        const LoadOptions& options) {
  std::vector<std::string> own, theirs;
  for (const auto& [name, tensor] : all_of(state)) own.push_back(name);
  for (const auto& array : file.arrays) theirs.push_back(array.name);
  const std::string what = "load " + path.string();
  detail::LeftOut left = detail::left_out(own, theirs, names, options, what);
  const ModelState wanted{without(state.parameters, left.names),
                          without(state.buffers, left.names)};
  std::erase_if(file.arrays, [&](const auto& array) { return left.names.contains(array.name); });
  require_fit(wanted, file, names, what);
  for (const auto& [name, tensor] : all_of(wanted))
    copy_queued(tensor, tensor_of(*file.find(name)));
  return std::move(left.report);
}

bool has_any_of(const data::Safetensors& file, const NamedTensors& parameters) {
  return std::ranges::any_of(parameters,
                             [&](const auto& item) { return file.find(item.first) != nullptr; });
}

// In one sentence, where every name would differ.
void require_whole_network(const ModelState& state, const data::Safetensors& file,
                           const std::filesystem::path& path) {
  if (!file.metadata.contains(detail::kAdaptersPart) || has_any_of(file, state.parameters)) return;
  throw DataError(fmt::format(
      "load {}: has the adapters of a network (--lora) alone, not the weights that they stand "
      "beside\n  go on with its training (--resume): model.safetensors, at its end, has both; or "
      "load it into a model with the same adapters that began with the same weights",
      path.string()));
}

}  // namespace

LoadReport load_weights(const ModelState& state, const std::filesystem::path& path,
                        const ParameterNames& names, const LoadOptions& options) {
  const data::Safetensors file = arrays_at(path);
  require_whole_network(state, file, path);
  return take_weights(state, file, names, path, options);
}

ParameterNames all_names(const torch::nn::Module& module) {
  ParameterNames names;
  std::map<const void*, std::string> first;
  const auto add = [&](const auto& tensors) {
    for (const auto& item : tensors) {
      const void* key = &item;  // of one that is not there
      if (item.value().defined()) key = item.value().unsafeGetTensorImpl();
      names.emplace(item.key(), first.emplace(key, item.key()).first->second);
    }
  };
  add(module.named_parameters());
  add(module.named_buffers());
  return names;
}

// ---- modules with adapters ----

ModelState merged_state_of(const torch::nn::Module& module) {
  ModelState state = state_of(module);
  if (const auto* const own = detail::adapted(module)) state.parameters = own->merged_parameters();
  return state;
}

namespace detail {

nn::Adapted* adapted(torch::nn::Module& module) {
  auto* const own = dynamic_cast<nn::Adapted*>(&module);
  return own != nullptr && own->base() ? own : nullptr;
}
const nn::Adapted* adapted(const torch::nn::Module& module) {
  const auto* const own = dynamic_cast<const nn::Adapted*>(&module);
  return own != nullptr && own->base() ? own : nullptr;
}

ModelState base_of(const nn::Adapted& module) {
  return {.parameters = unique_parameters(*module.base()), .buffers = {}};
}

std::string adapters_words(const nn::Adapted& module) {
  Json scales = Json::object();
  for (const nn::LoraMatrix& matrix : module.adapters()) scales[matrix.name] = matrix.lora.scale();
  return dump_json(Json{{"base_sha256", weights_sha256(base_of(module))}, {"scales", scales}});
}

void require_adapters(const nn::Adapted& module, const std::string& words,
                      const std::string& what) {
  const Json then = parse_json(words), now = parse_json(adapters_words(module));
  if (!then.is_object() || !then.contains("base_sha256") || !then.contains("scales"))
    throw DataError(
        fmt::format("{}: adapters: got {}, expected base_sha256 and scales", what, words));
  if (then["base_sha256"] != now["base_sha256"])
    throw UsageError(fmt::format(
        "{}: its adapters stand beside other weights: sha256 {} there, {} here\n  begin with the "
        "weights that it began with: the same .pt2 file, and the same --from, or load()",
        what, dump_json(then["base_sha256"]), dump_json(now["base_sha256"])));
  if (then["scales"] != now["scales"])
    throw UsageError(
        fmt::format("{}: has other adapters, by matrix and scale (alpha / rank): {} "
                    "there, {} here",
                    what, dump_json(then["scales"]), dump_json(now["scales"])));
}

LoadReport load_module(torch::nn::Module& module, const std::filesystem::path& path,
                       const LoadOptions& options) {
  nn::Adapted* const own = adapted(module);
  if (own == nullptr)
    return load_weights(tutti::state_of(module), path, all_names(module), options);
  const data::Safetensors file = arrays_at(path);
  const ModelState state = tutti::state_of(module);
  if (has_any_of(file, state.parameters)) {
    const auto words = file.metadata.find(kAdaptersPart);
    if (words != file.metadata.end())
      require_adapters(*own, words->second, "load " + path.string());
    else
      log(LogLevel::warning,
          "load {}: does not say which weights its adapters stand beside; they are taken beside "
          "those that are here",
          path.string());
    return take_weights(state, file, {}, path, options);
  }
  ParameterNames names = all_names(*own->base());
  names.merge(all_names(module));
  LoadReport report =
      take_weights({base_of(*own).parameters, state.buffers}, file, names, path, options);
  own->clear_adapters();
  return report;
}

void save_adapters(const nn::Adapted& module, const ModelState& state,
                   const std::filesystem::path& path) {
  write_weights(state, path, {{"format", "pt"}, {kAdaptersPart, adapters_words(module)}});
}

NamedTensors copy_of_base(const nn::Adapted& module) {
  NamedTensors copy = base_of(module).parameters;
  for (auto& [name, values] : copy) values = values.detach().clone();
  return copy;
}

void put_back_base(const nn::Adapted& module, const NamedTensors& copy) {
  const NamedTensors parameters = base_of(module).parameters;
  for (size_t i = 0; i < parameters.size(); ++i)
    copy_queued(parameters[i].second, copy.at(i).second);
}

void copy_base(const torch::nn::Module& from, const torch::nn::Module& to, Millis limit) {
  if (const auto* const own = adapted(from)) copy_values(*own->base(), *adapted(to)->base(), limit);
}

}  // namespace detail

// ---- Model::load(): into all that has copies ----

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
LoadReport load_whole(const WholeModel& whole, const std::filesystem::path& path, ModelState shapes,
                      const ParameterNames& names, const LoadOptions& options) {
  for (NamedTensors* const tensors : {&shapes.parameters, &shapes.buffers})
    for (auto& [name, tensor] : *tensors)
      tensor = at::empty(tensor.sizes(), tensor.options().device(at::kCPU));
  LoadReport report = load_weights(shapes, path, names, options);
  const std::set<std::string> loaded(report.loaded.begin(), report.loaded.end());
  for (NamedTensors* const tensors : {&shapes.parameters, &shapes.buffers}) {
    std::erase_if(*tensors, [&](const auto& item) { return !loaded.contains(item.first); });
    whole.scatter(*tensors);
  }
  return report;
}

// Into another local replica. Of buffers that were left out each has its own (running statistics).
void copy_loaded(const torch::nn::Module& from, const torch::nn::Module& to,
                 const LoadReport& report, Millis limit) {
  const std::set<std::string> loaded(report.loaded.begin(), report.loaded.end());
  NamedTensors left_out = unique_buffers(to), own;
  std::erase_if(left_out, [&](const auto& item) { return loaded.contains(item.first); });
  for (const auto& [name, buffer] : left_out) own.emplace_back(name, buffer.clone());
  detail::copy_values(from, to, limit);
  detail::copy_base(from, to, limit);
  for (size_t i = 0; i < own.size(); ++i) copy_queued(left_out[i].second, own[i].second);
}

// Servers have the values that the model was compiled with, and an optimizer's state of theirs.
bool on_servers(const std::optional<detail::Compiled>& compiled) {
  return compiled && compiled->optimizer.updater().parts().client != nullptr;
}

void require_untrained(const detail::Compiled& compiled, const std::filesystem::path& path) {
  const int64_t steps = compiled.optimizer.updater().version();
  if (steps == 0) return;
  throw UsageError(fmt::format(
      "load {}: the servers have trained this model for {} steps, and keep an optimizer's state "
      "for these weights: load() before compile(), into a new Model",
      path.string(), steps));
}

}  // namespace

LoadReport Model::load(const std::filesystem::path& path, const LoadOptions& options) {
  State& state = *state_;
  detail::require_same_words(state.strategy, "load", detail::load_words(options));
  LoadReport report;
  torch::nn::Module& first = *state.modules.module(0);
  std::exception_ptr failure;
  try {
    if (on_servers(state.compiled)) require_untrained(*state.compiled, path);
    if (const WholeModel* const whole = state.modules.whole()) {
      report = load_whole(*whole, path, state.shapes(), all_names(first), options);
    } else {
      report = detail::load_module(first, path, options);
      const Millis limit = state.strategy.world().time_limit;
      for (int local = 1; local < state.modules.size(); ++local)
        copy_loaded(first, *state.modules.module(local), report, limit);
      load_tables(state, path);
    }
    state.weights_written();
  } catch (const std::exception&) {
    failure = std::current_exception();
  }
  detail::agree_on_failure(state.strategy, failure, "load " + path.string());
  if (!options.skip.empty() || !options.strict)
    log(LogLevel::info, "load {}: {}", path.string(), report.to_string());
  if (on_servers(state.compiled)) {
    detail::own_storage(state.modules);
    try {
      state.compiled->optimizer = state.compiled->make();
    } catch (...) {
      state.compiled.reset();  // what it had is no more that of the modules
      throw;
    }
  }
  return report;
}

}  // namespace tutti
