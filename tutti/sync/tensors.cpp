#include "tutti/sync/tensors.h"

#include <torch/torch.h>

#include <unordered_set>

namespace tutti {
namespace {

constexpr std::pair<DType, at::ScalarType> kTypes[] = {
    {DType::boolean, at::kBool},   {DType::uint8, at::kByte},       {DType::int8, at::kChar},
    {DType::uint16, at::kUInt16},  {DType::int16, at::kShort},      {DType::uint32, at::kUInt32},
    {DType::int32, at::kInt},      {DType::uint64, at::kUInt64},    {DType::int64, at::kLong},
    {DType::float16, at::kHalf},   {DType::bfloat16, at::kBFloat16}, {DType::float32, at::kFloat},
    {DType::float64, at::kDouble},
};

template <class Entries>
std::vector<std::pair<std::string, at::Tensor>> each_once(const Entries& entries) {
  std::vector<std::pair<std::string, at::Tensor>> unique;
  std::unordered_set<const void*> seen;
  for (const auto& entry : entries) {
    const at::Tensor& tensor = entry.value();
    if (tensor.defined() && seen.insert(tensor.unsafeGetTensorImpl()).second)
      unique.emplace_back(entry.key(), tensor);
  }
  return unique;
}

}  // namespace

DType dtype_of(at::ScalarType type) {
  for (const auto& [ours, theirs] : kTypes)
    if (theirs == type) return ours;
  throw UsageError(fmt::format("tensors of dtype {} cannot be shared between replicas; use one of "
                               "LibTorch's integer or floating dtypes", c10::toString(type)));
}

at::ScalarType scalar_type_of(DType dtype) { return kTypes[static_cast<size_t>(dtype)].second; }

MemorySpan span_of(const at::Tensor& tensor) {
  if (!tensor.defined()) throw UsageError("span_of: the tensor is undefined");
  if (tensor.layout() != at::kStrided || !tensor.is_contiguous())
    throw UsageError(fmt::format("span_of: a tensor of shape {} is not dense and contiguous; call "
                                 "contiguous() and keep the result", c10::str(tensor.sizes())));
  Place place;
  if (!tensor.device().is_cpu())
    place = {Place::Kind::cuda, static_cast<int16_t>(tensor.device().index()), {}};
  return {tensor.data_ptr(), tensor.numel(), dtype_of(tensor.scalar_type()), place};
}

at::Tensor tensor_of(const Array& array) {
  return at::from_blob(array.data(), array.shape(), [owner = array.owner()](void*) {},
                       at::TensorOptions().dtype(scalar_type_of(array.dtype())));
}

std::vector<std::pair<std::string, at::Tensor>> unique_parameters(const torch::nn::Module& module) {
  return each_once(module.named_parameters());
}

std::vector<std::pair<std::string, at::Tensor>> unique_buffers(const torch::nn::Module& module) {
  return each_once(module.named_buffers());
}

}  // namespace tutti
