/// Stages of a pipeline out of a torch::nn::Sequential. Thread rule: as the module's.
#pragma once

#include <torch/nn/modules/container/sequential.h>

#include <vector>

#include "tutti/parallel/stages/recompute.h"
#include "tutti/parallel/stages/stage.h"

namespace tutti::parallel {

/// Stage s has the children of `whole` from cuts[s] to cuts[s + 1], as balanced() gives them; its
/// parameters have the names that they have there ("3.weight"), and are the same tensors. A rank
/// that lets go of `whole` and of the stages of others has the memory of its own alone.
///
/// `input`: a sample as the first child takes it. Borders are found out by one run of zeros in
/// evaluation mode, without gradients; every child takes a tensor and gives one. A stage does not
/// begin with a layer that works in place.
///
/// Throws UsageError for cuts that do not go from 0 to the number of children in rising order, and
/// for a parameter that two stages have.
std::vector<Stage> sequential_stages(torch::nn::Sequential whole, const Border& input,
                                     const std::vector<size_t>& cuts,
                                     const Recompute& recompute = {});

}  // namespace tutti::parallel
