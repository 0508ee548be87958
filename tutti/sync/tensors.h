/// The seam between LibTorch's tensors and the library's plain spans.
#pragma once

#include <torch/types.h>

#include <string>
#include <utility>
#include <vector>

#include "tutti/base/array.h"
#include "tutti/base/error.h"

namespace torch::nn {
class Module;
}

namespace tutti {

/// LibTorch's dtype as ours and back; UsageError for types that spans do not have (complex, quantised).
DType dtype_of(at::ScalarType type);
at::ScalarType scalar_type_of(DType dtype);

/// The elements of a dense, contiguous CPU or CUDA tensor, not copied. The tensor must outlive the
/// operation. Throws UsageError when it is not contiguous: call contiguous() and keep the result.
MemorySpan span_of(const at::Tensor& tensor);

/// A tensor over an Array's memory, not copied; the tensor keeps the Array's owner alive.
at::Tensor tensor_of(const Array& array);

/// A module's parameters by name, each once: tied ones (the same TensorImpl) keep their first name.
std::vector<std::pair<std::string, at::Tensor>> unique_parameters(const torch::nn::Module& module);

/// The same for buffers.
std::vector<std::pair<std::string, at::Tensor>> unique_buffers(const torch::nn::Module& module);

}  // namespace tutti
