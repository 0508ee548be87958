#include "tests/support/fake_cuda/kernels.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <c10/core/CPUAllocator.h>

namespace tutti::test::fake_cuda {
namespace {

const c10::DispatchKeySet kNoKernels = c10::default_excluded_set |
                                       c10::autograd_dispatch_keyset_with_ADInplaceOrView |
                                       c10::autocast_dispatch_keyset;

class NoWarnings final : public c10::WarningHandler {
 public:
  void process(const c10::Warning&) override {}
};
NoWarnings no_warnings;

void* memory_of(const at::Tensor& t) {
  return t.numel() == 0 ? nullptr : const_cast<void*>(t.const_data_ptr());
}

at::TensorOptions cpu_options(const at::Tensor& t) {
  return at::TensorOptions().dtype(t.scalar_type()).device(at::kCPU);
}

}  // namespace

KernelScope::KernelScope()
    : keys_(c10::default_included_set, kNoKernels), no_warnings_(&no_warnings) {
  // A thread learns of at::set_num_threads() where it asks; kernels of oneDNN do not.
  at::get_num_threads();
}

at::Tensor cpu_alias(const at::Tensor& t) {
  auto alias = at::from_blob(memory_of(t), t.sizes(), t.strides(), cpu_options(t));
  if (t.unsafeGetTensorImpl()->is_wrapped_number()) {
    alias.unsafeGetTensorImpl()->set_wrapped_number(true);
  }
  return alias;
}

at::Tensor resizable_cpu_alias(const at::Tensor& t) {
  return at::for_blob(memory_of(t), t.sizes())
      .strides(t.strides())
      .options(cpu_options(t))
      .resizeable_storage()
      .allocator(c10::GetCPUAllocator())
      .make_tensor();
}

c10::IValue map_tensors(const c10::IValue& value, const TensorMap& map) {
  if (value.isTensor()) return map(value.toTensor());
  if (value.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const auto& each : value.toListRef()) list.push_back(map(each.toTensor()));
    return list;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> list;
    for (const auto& each : value.toListRef()) {
      list.push_back(each.isNone() ? std::nullopt : std::optional(map(each.toTensor())));
    }
    return list;
  }
  if (value.isDevice()) return c10::Device(at::kCPU);
  return value;
}

void for_each_tensor(const c10::IValue& value,
                     const std::function<void(const at::Tensor&)>& visit) {
  if (value.isTensor()) {
    visit(value.toTensor());
  } else if (value.isTensorList() || value.isOptionalTensorList()) {
    for (const auto& each : value.toListRef()) {
      if (each.isTensor()) visit(each.toTensor());
    }
  }
}

}  // namespace tutti::test::fake_cuda
