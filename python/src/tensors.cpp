#include "tensors.h"

#include <ATen/ATen.h>

namespace tutti::python {
namespace {

constexpr std::pair<c10::ScalarType, DType> kTypes[] = {
    {c10::kBool, DType::boolean},      {c10::kByte, DType::uint8},
    {c10::kChar, DType::int8},         {c10::kUInt16, DType::uint16},
    {c10::kShort, DType::int16},       {c10::kUInt32, DType::uint32},
    {c10::kInt, DType::int32},         {c10::kUInt64, DType::uint64},
    {c10::kLong, DType::int64},        {c10::kHalf, DType::float16},
    {c10::kBFloat16, DType::bfloat16}, {c10::kFloat, DType::float32},
    {c10::kDouble, DType::float64},
};

ReduceOp reduce_bools(c10d::ReduceOp::RedOpType op) {
  switch (op) {
    case c10d::ReduceOp::SUM:
    case c10d::ReduceOp::MAX:
    case c10d::ReduceOp::BOR: return ReduceOp::logical_or;
    case c10d::ReduceOp::PRODUCT:
    case c10d::ReduceOp::MIN:
    case c10d::ReduceOp::BAND: return ReduceOp::logical_and;
    case c10d::ReduceOp::BXOR: return ReduceOp::logical_xor;
    default: TORCH_CHECK(false, "Cannot use ReduceOp.AVG with bool");
  }
}

// Contiguous memory for tensors like this one.
at::Tensor host_room(at::IntArrayRef sizes, const at::Tensor& like) {
  auto options = like.options().memory_format(at::MemoryFormat::Contiguous);
  if (!like.is_cpu()) options = options.device(at::kCPU).pinned_memory(true);
  return at::empty(sizes, options);
}

ReduceOp bitwise(ReduceOp op, const char* name, bool integral) {
  TORCH_CHECK(integral, "Cannot use ReduceOp.", name, " with non-integral dtype");
  return op;
}

}  // namespace

std::optional<DType> dtype_of(c10::ScalarType type) {
  for (const auto& [theirs, ours] : kTypes)
    if (theirs == type) return ours;
  return std::nullopt;
}

MemorySpan span_of(const at::Tensor& tensor) {
  const auto dtype = dtype_of(tensor.scalar_type());
  if (!dtype) return bytes_of(tensor);
  return {tensor.data_ptr(), tensor.numel(), *dtype};
}

MemorySpan bytes_of(const at::Tensor& tensor) {
  return {tensor.data_ptr(), static_cast<int64_t>(tensor.nbytes()), DType::uint8};
}

at::Tensor contiguous(const at::Tensor& tensor) {
  if (tensor.is_cpu()) return tensor.detach().contiguous();
  return host_room(tensor.sizes(), tensor).copy_(tensor.detach(), /*non_blocking=*/true);
}

at::Tensor contiguous_room(const at::Tensor& tensor) {
  if (tensor.is_cpu() && tensor.is_contiguous()) return tensor.detach();
  return host_room(tensor.sizes(), tensor);
}

at::Tensor room_for(const std::vector<at::Tensor>& tensors) {
  int64_t num_elements = 0;
  for (const auto& tensor : tensors) num_elements += tensor.numel();
  return host_room({num_elements}, tensors.at(0));
}

at::Tensor joined(const std::vector<at::Tensor>& tensors) {
  at::Tensor all = room_for(tensors);
  int64_t begin = 0;
  for (const auto& tensor : tensors) {
    all.narrow(0, begin, tensor.numel())
        .view(tensor.sizes())
        .copy_(tensor.detach(), /*non_blocking=*/!tensor.is_cpu());
    begin += tensor.numel();
  }
  return all;
}

bool adjoin(const std::vector<at::Tensor>& tensors) {
  const void* expected = nullptr;
  for (const auto& tensor : tensors) {
    if (!tensor.is_cpu() || !tensor.is_contiguous()) return false;
    if (expected != nullptr && tensor.data_ptr() != expected) return false;
    expected = static_cast<const char*>(tensor.data_ptr()) + tensor.nbytes();
  }
  return true;
}

ReduceOp reduce_op(const c10d::ReduceOp& op, c10::ScalarType type) {
  TORCH_CHECK(dtype_of(type).has_value(), "Invalid scalar type");
  if (type == c10::kBool) return reduce_bools(op.op_);
  const bool integral = c10::isIntegralType(type, /*includeBool=*/false);
  switch (op.op_) {
    case c10d::ReduceOp::SUM: return ReduceOp::sum;
    case c10d::ReduceOp::PRODUCT: return ReduceOp::product;
    case c10d::ReduceOp::MIN: return ReduceOp::min;
    case c10d::ReduceOp::MAX: return ReduceOp::max;
    case c10d::ReduceOp::BAND: return bitwise(ReduceOp::bit_and, "BAND", integral);
    case c10d::ReduceOp::BOR: return bitwise(ReduceOp::bit_or, "BOR", integral);
    case c10d::ReduceOp::BXOR: return bitwise(ReduceOp::bit_xor, "BXOR", integral);
    case c10d::ReduceOp::AVG:
      TORCH_CHECK(!integral, "Cannot use ReduceOp.AVG with integers");
      return ReduceOp::mean;
    default: TORCH_CHECK(false, "Cannot use ReduceOp.PREMUL_SUM with tutti; multiply before");
  }
}

void check_dense(const char* call, const std::vector<at::Tensor>& tensors) {
  TORCH_CHECK(!tensors.empty(), call, ": requires non-empty tensor list");
  for (const auto& tensor : tensors) {
    TORCH_CHECK(tensor.layout() == at::kStrided, call, ": only supports dense tensors");
    TORCH_CHECK(tensor.is_cpu() || tensor.is_cuda(), call, ": tensor on ", tensor.device(),
                "; backend tutti takes tensors on the CPU and on CUDA devices");
  }
}

at::Device device_of(const char* call, const std::vector<at::Tensor>& inputs,
                     const std::vector<std::vector<at::Tensor>>& outputs) {
  std::optional<at::Device> device;
  const auto look_at = [&](const std::vector<at::Tensor>& tensors) {
    for (const auto& tensor : tensors) {
      if (!device) device = tensor.device();
      TORCH_CHECK(tensor.device() == *device, call, ": one tensor on ", *device, " and another on ",
                  tensor.device(), "; those of one call must be on one device: move them before it");
    }
  };
  look_at(inputs);
  for (const auto& list : outputs) look_at(list);
  return device.value_or(at::kCPU);
}

void check_one(const char* call, const std::vector<at::Tensor>& tensors, const char* what) {
  TORCH_CHECK(tensors.size() == 1, call, ": requires a single-element ", what, " tensor list, got ",
              tensors.size());
}

void check_same(const char* call, const std::vector<at::Tensor>& tensors, const at::Tensor& like) {
  for (const auto& tensor : tensors) {
    TORCH_CHECK(tensor.scalar_type() == like.scalar_type(), call,
                ": invalid tensor type: ", tensor.scalar_type(), " beside ", like.scalar_type());
    TORCH_CHECK(tensor.sizes() == like.sizes(), call, ": invalid tensor size: ", tensor.sizes(),
                " beside ", like.sizes());
  }
}

void check_root(const char* call, int64_t root, int size) {
  TORCH_CHECK(root >= 0 && root < size, call, ": invalid root rank: ", root, "; expected 0 to ",
              size - 1);
}

}  // namespace tutti::python
