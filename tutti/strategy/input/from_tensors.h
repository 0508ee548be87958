/// A dataset of tensors in memory. Thread rule: as Dataset.
#pragma once

#include <torch/types.h>

#include <vector>

#include "tutti/data/dataset.h"

namespace tutti::data {

/// Column c of sample i is row i of tensors[c], dtype kept: {inputs, targets}. Tensors of the CPU,
/// all with the same first size, else UsageError. Their memory is shared where rows lie side by
/// side, else copied.
Dataset from_tensors(const std::vector<at::Tensor>& tensors);

}  // namespace tutti::data
