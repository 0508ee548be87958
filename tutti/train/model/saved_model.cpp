#include "tutti/train/model/saved_model.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <fstream>
#include <system_error>
#include <utility>
#include <vector>

#include "tutti/base/error.h"
#include "tutti/base/file.h"
#include "tutti/base/log.h"
#include "tutti/nn/graph_json.h"
#include "tutti/train/model/detail/graph_file.h"
#include "tutti/train/model/weights.h"
#include "tutti/train/model/weights_found.h"

namespace tutti {
namespace {

namespace fs = std::filesystem;

bool is_graph_file(const fs::path& path) {
  constexpr size_t kEnough = 64;
  std::string begin(kEnough, '\0');
  std::ifstream file(path, std::ios::binary);
  file.read(begin.data(), std::ssize(begin));
  begin.resize(static_cast<size_t>(file.gcount()));
  return nn::is_graph_json(begin);
}

fs::path weights_at(const fs::path& place) {
  const auto found = weights_in(place);
  if (!found.empty()) return found.back().path;
  throw UsageError(
      fmt::format("{}: no weights are there; expected a safetensors file, a checkpoint, or the "
                  "folder of a training",
                  place.string()));
}

// Where its graph may be, the likeliest first.
std::vector<fs::path> graph_files_for(const fs::path& weights) {
  const fs::path whole = fs::absolute(weights).lexically_normal();
  std::error_code failure;
  if (!fs::is_directory(whole, failure))
    return {detail::graph_file_of(whole), whole.parent_path() / detail::kGraphFile};
  const fs::path folder = whole.filename().empty() ? whole.parent_path() : whole;
  std::vector<fs::path> files;
  for (const fs::path& in : {folder, folder.parent_path(), folder.parent_path().parent_path()})
    files.push_back(in / detail::kGraphFile);
  return files;
}

}  // namespace

fs::path detail::graph_file_of(const fs::path& weights) {
  fs::path file = weights;
  return file.replace_extension(".json");
}

void detail::write_graph_file(const fs::path& file, const std::optional<nn::Graph>& graph) {
  std::error_code failure;
  const bool there = fs::exists(file, failure);
  if (there && !is_graph_file(file)) {
    if (graph)
      log(LogLevel::warning,
          "{} stays as it is: it is no graph of a model; the model's is not written, and "
          "load_model() cannot take its weights",
          file.string());
    return;
  }
  const std::string why = graph ? nn::why_no_json(*graph) : "";
  if (!why.empty())
    log_once("graph file " + file.string(), LogLevel::warning,
             "{} is not written, and load_model() cannot take the weights: {}{}", file.string(),
             why, there ? "; the graph that was there, of another model, is removed" : "");
  if (graph && why.empty())
    write_file_atomically(file, nn::graph_to_json(*graph));
  else if (there)
    fs::remove(file, failure);
}

SavedModel find_saved_model(const fs::path& place) {
  const fs::path weights = weights_at(place);
  const std::vector<fs::path> files = graph_files_for(weights);
  const auto file = std::ranges::find_if(files, is_graph_file);
  if (file == files.end()) {
    std::vector<std::string> names;
    for (const fs::path& each : files) names.push_back(each.string());
    throw UsageError(fmt::format(
        "{}: no graph is beside the weights; expected {}, which Model::save() and fit() write of a "
        "model that is an nn::Graph, or {} of a network that was written in Python",
        weights.string(), fmt::join(names, " or "), kExportFile));
  }
  return {nn::graph_from_json(read_file(*file), file->string()), weights};
}

std::optional<SavedExport> find_saved_export(const fs::path& place) {
  const fs::path weights = weights_at(place);
  if (std::ranges::any_of(graph_files_for(weights), is_graph_file)) return std::nullopt;
  const auto files = export_beside(weights);
  if (!files) return std::nullopt;
  return SavedExport{from_export(files->network, {.eval = files->evaluation}), weights};
}

std::shared_ptr<nn::GraphModule> module_of(const SavedModel& saved) {
  auto module = nn::make_module(saved.graph);
  const at::NoGradGuard no_grad;
  load_weights(state_of(*module), saved.weights, all_names(*module));
  return module;
}

Model load_model(Strategy strategy, const fs::path& place) {
  if (const auto exported = find_saved_export(place)) {
    Model model(std::move(strategy), exported->network);
    model.load(exported->weights);
    return model;
  }
  const SavedModel saved = find_saved_model(place);
  Model model(std::move(strategy), [graph = saved.graph] { return graph; });
  model.load(saved.weights);
  return model;
}

}  // namespace tutti
