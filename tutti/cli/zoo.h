/// The networks that `tutti plan` knows by name, as graphs: photographs at the size of their
/// papers, doodles and texts as `tutti train` has them. Thread rule: pure functions.
#pragma once

#include <string>
#include <vector>

#include "tutti/nn/graph.h"

namespace tutti::cli {

struct Network {
  std::string name;
  nn::Graph graph;
};

std::vector<Network> zoo();

/// Throws UsageError for another name, with the nearest.
Network zoo_network(const std::string& name);

}  // namespace tutti::cli
