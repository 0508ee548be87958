/// An nn::Graph as JSON, and back: what lies beside weights, so that a model can be made without
/// the program that trained it. docs/formats/graph.md has the fields.
/// Thread rule: pure functions.
#pragma once

#include <string>
#include <string_view>

#include "tutti/nn/graph.h"

namespace tutti::nn {

/// A node a line. Equal graphs have equal text; which parameters are frozen is in it, weights are
/// not. DataError for a name that is no UTF-8, UsageError for what why_no_json() says.
std::string graph_to_json(const Graph& graph);

/// Why there is none: the first layer that is a function of the program's own (lambda.h). "" where
/// there is.
std::string why_no_json(const Graph& graph);

/// The graph that graph_to_json() has written: to_json() of it is the same text.
///
/// Sizes that follow from a layer's inputs must be those that follow; numbers are at most 2^31 - 1,
/// a text 64 MiB, nodes 16,384, elements of all parameters 2^48. Throws DataError with `where`, the
/// node, what was got and expected; nothing is allocated by what the text claims.
Graph graph_from_json(std::string_view text, const std::string& where);

/// Whether it begins as graph_to_json() does, of any version.
bool is_graph_json(std::string_view text);

}  // namespace tutti::nn
