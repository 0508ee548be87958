/// The seam between LibTorch's tensors and the library's plain spans.
#pragma once

#include <torch/types.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tutti/base/array.h"
#include "tutti/base/error.h"
#include "tutti/comm/group/group.h"
#include "tutti/sync/sparse_tables.h"

namespace torch::nn {
class Module;
}

namespace tutti {

/// LibTorch's dtype as ours and back; UsageError for types that spans do not have (complex,
/// quantised).
DType dtype_of(at::ScalarType type);
at::ScalarType scalar_type_of(DType dtype);

/// The elements of a dense, contiguous CPU or CUDA tensor, not copied; of a CUDA tensor with the
/// stream that is current, behind whose work an operation on it comes. The tensor must outlive the
/// operation. Throws UsageError when it is not contiguous: call contiguous() and keep the result.
MemorySpan span_of(const at::Tensor& tensor);

/// A tensor over an Array's memory, not copied; the tensor keeps the Array's owner alive.
at::Tensor tensor_of(const Array& array);

/// An Array over a tensor's memory, or over a copy where its elements are not side by side. Of the
/// CPU.
Array array_of(const at::Tensor& tensor);

/// A module's parameters by name, each once: tied ones (the same TensorImpl) keep their first name.
std::vector<std::pair<std::string, at::Tensor>> unique_parameters(const torch::nn::Module& module);

/// The same for buffers.
std::vector<std::pair<std::string, at::Tensor>> unique_buffers(const torch::nn::Module& module);

/// A module's layers over embedding tables, itself among them, each once, in the order in which it
/// has them. The module is in a shared_ptr.
std::vector<std::shared_ptr<TableLayer>> table_layers_of(const torch::nn::Module& module);

// ---- a model's tensors as a whole ----

namespace detail {

/// One line a parameter, then one a buffer: kind, name, dtype, shape.
std::string describe(const torch::nn::Module& module);

/// Mismatch naming the first line in which rank `other_rank` differs from rank 0.
void require_same(const std::string& first, const std::string& other, int other_rank);

/// Collective: the same Mismatch on every rank when any rank's description differs from rank 0's.
void compare_over_group(Group group, const std::string& mine, Millis limit);

/// Copies parameters and buffers between two models of this process that have the same description.
/// From a device to the CPU it waits half of `limit` at most: Timeout that names the device.
void copy_values(const torch::nn::Module& from, const torch::nn::Module& to, Millis limit);

/// Collective: rank `root`'s parameters and buffers become everybody's.
void broadcast_values(Group group, const torch::nn::Module& module, int root, Millis limit);

}  // namespace detail

}  // namespace tutti
