// Tensors as arrays of plain memory, and back; copies.
#pragma once

#include "tutti/sync/tensors.h"

namespace tutti::test {

inline Array plain_array(const at::Tensor& tensor) {
  return tutti::array_of(tensor.detach().clone());
}
inline at::Tensor torch_tensor(const Array& array) { return tutti::tensor_of(array).clone(); }

}  // namespace tutti::test
