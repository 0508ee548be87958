/// Tensors on devices.
#pragma once

#include <ATen/core/Tensor.h>

namespace tutti::test::fake_cuda {

/// Of NaN, allocated for the current stream of `device`.
at::Tensor new_tensor(c10::IntArrayRef sizes, c10::IntArrayRef strides, c10::ScalarType dtype,
                      int device);

/// resize_(): a storage that grows gets new memory, to which a task copies what was there.
void resize_tensor(const at::Tensor& t, c10::IntArrayRef sizes);

}  // namespace tutti::test::fake_cuda
