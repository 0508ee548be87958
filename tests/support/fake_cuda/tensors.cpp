// Operators that make tensors, views of them, and storages: they do no work on a device.
#include "tests/support/fake_cuda/tensors.h"

#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>
#include <ATen/NativeFunctions.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include <cstring>

#include "tests/support/fake_cuda/guard.h"
#include "tests/support/fake_cuda/memory.h"

namespace tutti::test::fake_cuda {
namespace {

const c10::DispatchKeySet kCudaKey(c10::DispatchKey::CUDA);

at::Tensor empty(c10::IntArrayRef size, std::optional<c10::ScalarType> dtype,
                 std::optional<c10::Layout>, std::optional<c10::Device> device, std::optional<bool>,
                 std::optional<c10::MemoryFormat> format) {
  const c10::DeviceGuard on(c10::device_or_default(device));
  return at::detail::empty_generic(size, &device_memory(), kCudaKey, c10::dtype_or_default(dtype),
                                   format);
}

at::Tensor empty_strided(c10::IntArrayRef size, c10::IntArrayRef stride,
                         std::optional<c10::ScalarType> dtype, std::optional<c10::Layout>,
                         std::optional<c10::Device> device, std::optional<bool>) {
  const c10::DeviceGuard on(c10::device_or_default(device));
  return at::detail::empty_strided_generic(size, stride, &device_memory(), kCudaKey,
                                           c10::dtype_or_default(dtype));
}

at::Tensor as_strided(const at::Tensor& t, c10::SymIntArrayRef size, c10::SymIntArrayRef stride,
                      std::optional<c10::SymInt> offset) {
  return at::native::as_strided_tensorimpl(
      t, C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride),
      offset ? std::optional(offset->expect_int()) : std::nullopt);
}

at::Tensor view(const at::Tensor& t, c10::SymIntArrayRef size) {
  return at::native::view(t, C10_AS_INTARRAYREF_SLOW(size));
}

at::Tensor reshape_alias(const at::Tensor& t, c10::SymIntArrayRef size,
                         c10::SymIntArrayRef stride) {
  return at::native::_reshape_alias(t, C10_AS_INTARRAYREF_SLOW(size),
                                    C10_AS_INTARRAYREF_SLOW(stride));
}

at::Tensor unfold(const at::Tensor& t, int64_t dimension, int64_t size, int64_t step) {
  return at::native::unfold(t, dimension, size, step);
}

const at::Tensor& resize_(const at::Tensor& t, c10::SymIntArrayRef size,
                          std::optional<at::MemoryFormat> format) {
  resize_tensor(t, C10_AS_INTARRAYREF_SLOW(size));
  if (format) t.unsafeGetTensorImpl()->empty_tensor_restride(*format);
  return t;
}

at::Tensor& set_tensor(at::Tensor& t, const at::Tensor& source) {
  return at::native::set_tensor_(t, source);
}

at::Tensor& set_storage(at::Tensor& t, at::Storage storage, c10::SymInt offset,
                        c10::SymIntArrayRef size, c10::SymIntArrayRef stride) {
  return at::native::set_storage_cpu_(t, std::move(storage), offset.expect_int(),
                                      C10_AS_INTARRAYREF_SLOW(size),
                                      C10_AS_INTARRAYREF_SLOW(stride));
}

void record_stream(at::Tensor& t, c10::Stream stream) {
  if (!record_is_left_out()) device_memory().recordStream(t.storage().data_ptr(), stream);
}

TORCH_LIBRARY_IMPL(aten, CUDA, m) {
  m.impl("empty.memory_format", empty);
  m.impl("empty_strided", empty_strided);
  m.impl("as_strided", as_strided);
  m.impl("view", view);
  m.impl("_reshape_alias", reshape_alias);
  m.impl("unfold", unfold);
  m.impl("resize_", resize_);
  m.impl("set_.source_Tensor", set_tensor);
  m.impl("set_.source_Storage_storage_offset", set_storage);
  m.impl("record_stream", record_stream);
}

}  // namespace

at::Tensor new_tensor(c10::IntArrayRef sizes, c10::IntArrayRef strides, c10::ScalarType dtype,
                      int device) {
  TORCH_INTERNAL_ASSERT(device == current_device());
  return at::detail::empty_strided_generic(sizes, strides, &device_memory(), kCudaKey, dtype);
}

void resize_tensor(const at::Tensor& t, c10::IntArrayRef sizes) {
  auto* const impl = t.unsafeGetTensorImpl();
  impl->set_sizes_contiguous(sizes);
  const size_t needed = (impl->storage_offset() + impl->numel()) * impl->itemsize();
  auto* const storage = impl->unsafe_storage().unsafeGetStorageImpl();
  if (needed <= storage->nbytes()) return;
  const c10::DeviceGuard on(t.device());
  auto grown = device_memory().allocate(needed);
  if (storage->nbytes() > 0) {
    const auto from = storage->data();
    enqueue(current_queue(current_device()), "resize_",
            [to = grown.mutable_get(), from, bytes = storage->nbytes()] {
              std::memcpy(to, from, bytes);
            });
  }
  storage->set_data_ptr_noswap(std::move(grown));
  storage->set_nbytes(needed);
}

}  // namespace tutti::test::fake_cuda
