/// Where the residual branches of a graph end.
/// Thread rule: pure functions.
#pragma once

#include <vector>

#include "tutti/nn/graph.h"

namespace tutti::nn {

/// Places in graph.nodes() of the batch norms that end a residual branch, in their order: a norm
/// whose output enters one addition and nothing else, and which is deeper (by the longest way from
/// an input) than all else that enters it. A block whose last norm begins with weight 0 begins as
/// its shortcut alone (Goyal et al. 2017, arXiv:1706.02677, section 5.1). The norm of a shortcut
/// with a projection is not among them: with both at 0 nothing would come through. Of a layer that
/// is applied several times all applications must be such.
std::vector<int> last_batch_norms(const Graph& graph);

}  // namespace tutti::nn
