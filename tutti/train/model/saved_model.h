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
/// `tutti train --out` leaves it: model.safetensors, or its newest checkpoint. Throws UsageError
/// where no weights are, or no graph is beside them; DataError for one that is damaged.
SavedModel find_saved_model(const std::filesystem::path& place);

/// A module with the graph's weights, on the CPU. DataError as load_weights() where they do not
/// fit.
std::shared_ptr<nn::GraphModule> module_of(const SavedModel& saved);

/// A Model with them, as Model(strategy, factory) and Model::load() make one.
Model load_model(Strategy strategy, const std::filesystem::path& place);

}  // namespace tutti
