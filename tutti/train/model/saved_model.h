/// Models that lie on a disk with their graph: made again without the program that trained them.
///
///   tutti::Model model = tutti::load_model(strategy, "runs/doodles");
///
/// Model::save("NAME.safetensors") writes the graph of a model that is one to NAME.json beside it,
/// fit() to model.json in the folder of its checkpoints (docs/formats/graph.md).
/// Thread rule: pure functions of the disk; a Model's is its own.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>

#include "tutti/exported/from_export.h"
#include "tutti/nn/graph.h"
#include "tutti/nn/graph_module.h"
#include "tutti/train/model/model.h"

namespace tutti {

/// A graph, and where its weights are.
struct SavedModel {
  nn::Graph graph;
  std::filesystem::path weights;  ///< as Model::load() takes it
};

/// `place`: weights, with the graph beside them; a checkpoint; or the folder of a training, as
/// `tutti train --out` leaves it, of which it is the last of weights_in(). Throws UsageError
/// where no weights are, or no graph is beside them; DataError for one that is damaged.
SavedModel find_saved_model(const std::filesystem::path& place);

/// A network that was written in Python, with where its weights are: model.pt2 and model.eval.pt2
/// beside them, as `tutti train` leaves them. None where a graph is beside them, or no such file.
struct SavedExport {
  FromExport network;
  std::filesystem::path weights;
};
std::optional<SavedExport> find_saved_export(const std::filesystem::path& place);

/// A module with the graph's weights, on the CPU. DataError as load_weights() where they do not
/// fit.
std::shared_ptr<nn::GraphModule> module_of(const SavedModel& saved);

/// A Model of either with its weights, as Model(strategy, factory) and Model::load() make one.
Model load_model(Strategy strategy, const std::filesystem::path& place);

}  // namespace tutti
