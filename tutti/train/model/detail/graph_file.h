/// The graph beside weights, as it is written. Not for users. Thread rule: free functions.
#pragma once

#include <filesystem>
#include <optional>

#include "tutti/nn/graph.h"

namespace tutti::detail {

/// In the folder of a training, or of its checkpoints.
inline constexpr const char* kGraphFile = "model.json";

/// "doodle.json" of "doodle.safetensors".
std::filesystem::path graph_file_of(const std::filesystem::path& weights);

/// Writes the graph; of a model that is none, removes the graph of the one before. A file that is
/// no graph stays, and a warning says so. Throws as write_file_atomically().
void write_graph_file(const std::filesystem::path& file, const std::optional<nn::Graph>& graph);

}  // namespace tutti::detail
