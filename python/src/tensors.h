/// Tensors as an engine sees them: contiguous memory of a dtype.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <vector>

#include <torch/csrc/distributed/c10d/Types.hpp>

#include "tutti/comm/engine/engine.h"

namespace tutti::python {

/// float32 for c10::kFloat and so on; nothing for types that no engine adds (complex, float8, ...).
std::optional<DType> dtype_of(c10::ScalarType type);

/// The memory of a contiguous tensor on the CPU. Types without a DType count as bytes, so that they
/// can be moved, not added.
MemorySpan span_of(const at::Tensor& tensor);
/// The same, always as bytes.
MemorySpan bytes_of(const at::Tensor& tensor);

// All on the host: where tensors are on a device, in pinned memory that copies are queued to on the
// current queue.
/// `tensor`, or a contiguous copy of it.
at::Tensor contiguous(const at::Tensor& tensor);
/// `tensor`, or contiguous memory of its shape when it is not; contents undefined then.
at::Tensor contiguous_room(const at::Tensor& tensor);
/// One behind the other, flat.
at::Tensor joined(const std::vector<at::Tensor>& tensors);
/// Flat memory for all of them.
at::Tensor room_for(const std::vector<at::Tensor>& tensors);
/// Whether each lies right behind the one before, contiguous, so that together they are one span.
bool adjoin(const std::vector<at::Tensor>& tensors);

/// What `op` means for elements of `type`. Throws like gloo for what gloo refuses; mean of floating
/// types is taken. On bool: sum and max are "or", product and min are "and".
ReduceOp reduce_op(const c10d::ReduceOp& op, c10::ScalarType type);

// Checks of arguments; `call` begins the message. All throw c10::Error.
void check_dense(const char* call, const std::vector<at::Tensor>& tensors);
/// Where all of a call's tensors are; the CPU where it has none.
at::Device device_of(const char* call, const std::vector<at::Tensor>& inputs,
                     const std::vector<std::vector<at::Tensor>>& outputs);
void check_one(const char* call, const std::vector<at::Tensor>& tensors, const char* what);
void check_same(const char* call, const std::vector<at::Tensor>& tensors, const at::Tensor& like);
void check_root(const char* call, int64_t root, int size);

}  // namespace tutti::python
