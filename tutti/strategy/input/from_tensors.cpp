#include "tutti/strategy/input/from_tensors.h"

#include <torch/types.h>

#include "tutti/base/error.h"
#include "tutti/sync/tensors.h"

namespace tutti::data {

Dataset from_tensors(const std::vector<at::Tensor>& tensors) {
  std::vector<Array> columns;
  for (const at::Tensor& tensor : tensors) {
    if (!tensor.defined() || tensor.dim() == 0 || !tensor.is_cpu())
      throw UsageError(fmt::format(
          "from_tensors: column {}: expected a tensor [samples, ...] on the CPU, got {}",
          columns.size(),
          !tensor.defined()   ? "an undefined one"
          : tensor.dim() == 0 ? "a scalar"
                              : "one on " + tensor.device().str()));
    columns.push_back(tutti::array_of(tensor));
  }
  return from_arrays(std::move(columns));
}

}  // namespace tutti::data
