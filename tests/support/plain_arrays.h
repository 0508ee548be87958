// Tensors as arrays of plain memory, and back; copies.
#pragma once

#include <torch/types.h>

#include <memory>

#include "tutti/base/array.h"

namespace tutti::test {

/// float32, int32, int64 or uint32.
inline Array plain_array(const at::Tensor& tensor) {
  const auto keep = std::make_shared<at::Tensor>(tensor.detach().contiguous().clone());
  const DType dtype = keep->scalar_type() == at::kFloat  ? DType::float32
                      : keep->scalar_type() == at::kInt  ? DType::int32
                      : keep->scalar_type() == at::kLong ? DType::int64
                                                         : DType::uint32;
  return Array::view(keep->data_ptr(), dtype, keep->sizes().vec(), keep);
}

/// Of float32 or int64.
inline at::Tensor torch_tensor(const Array& array) {
  const auto type = array.dtype() == DType::int64 ? at::kLong : at::kFloat;
  return at::from_blob(array.data(), array.shape(), type).clone();
}

}  // namespace tutti::test
