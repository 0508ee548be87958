/// Dtypes of the values of a graph.
///
/// Layers compute in floating numbers, and refuse others while the graph is written, by name.
/// Operators that only move or join elements give what they get; an embedding gives float32, and so
/// do recurrent layers; a lambda gives what it says. Of two floating values of unlike dtypes, or of
/// a floating one and one that is not, comes a floating one, as in LibTorch.
/// Thread rule: a pure function.
#pragma once

#include <vector>

#include "tutti/nn/graph.h"

namespace tutti::nn {

/// By node. As the graph says it: autocast, and modules in another precision, change floating ones.
std::vector<DType> value_types(const Graph& graph);

}  // namespace tutti::nn
