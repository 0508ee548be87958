/// The networks that `tutti plan` knows by name, as graphs: photographs at the size of their
/// papers, doodles and texts as `tutti train` has them. Thread rule: pure functions.
#pragma once

#include <string>
#include <vector>

#include "tutti/nn/graph.h"

namespace tutti::cli {

struct ZooNetwork {
  std::string name;
  nn::Graph graph;
};

std::vector<ZooNetwork> zoo();

/// Throws UsageError for another name, with the nearest.
ZooNetwork zoo_network(const std::string& name);

}  // namespace tutti::cli
