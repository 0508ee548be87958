/// What of a graph a stage takes, gives and shares with others. Not for users.
/// Thread rule: pure functions.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "tutti/parallel/model/graph_stage.h"

namespace tutti::parallel::detail {

/// UsageError unless the ranges together are the graph, in order, and each has a layer.
void require_ranges(const nn::Graph& graph, const std::vector<StageRange>& stages);

/// The values that cross a cut before node `place`: by node. At the ends of the graph its inputs
/// and its outputs.
std::vector<nn::Port> values_across(const nn::Graph& graph, size_t place);

/// What values at these nodes are.
std::vector<Border> borders_of(const nn::Graph& graph, const std::vector<nn::Port>& ports);

/// The stages that apply each layer, by its name. UsageError for a layer with parameters that three
/// do, or with buffers that two do.
std::map<std::string, std::vector<int>> stages_by_layer(const nn::Graph& graph,
                                                        const std::vector<StageRange>& stages);

}  // namespace tutti::parallel::detail
