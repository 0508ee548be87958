/// Texts of graphs (model.json), as a function of bytes: what mutations are given to in every build
/// (tests/unit/nn/test_graph_json.cpp). The fuzzer of `make fuzz` is of modules without LibTorch.
#pragma once

#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>

#include "tutti/base/error.h"
#include "tutti/nn/graph_json.h"

namespace tutti::test {

/// Ends the process unless the text is refused with a DataError, or is a graph that comes back as
/// it was read. Whether it is one.
inline bool graph_text(std::string_view bytes) {
  std::optional<nn::Graph> graph;
  try {
    graph = nn::graph_from_json(bytes, "fuzzer");
  } catch (const DataError&) {
    return false;
  }
  const std::string text = nn::graph_to_json(*graph);
  const nn::Graph again = nn::graph_from_json(text, "written");
  if (nn::graph_to_json(again) != text || again.summary() != graph->summary()) std::abort();
  if (graph->num_frozen() > graph->num_parameters() || graph->num_frozen() < 0) std::abort();
  return true;
}

}  // namespace tutti::test
