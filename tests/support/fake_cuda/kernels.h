/// How a task calls the CPU's kernels on a device's memory.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <ATen/record_function.h>
#include <c10/core/GradMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <functional>

namespace tutti::test::fake_cuda {

inline bool is_ours(const at::Tensor& t) { return t.defined() && t.is_cuda(); }

/// While it lives, operators on this thread are kernels alone: no autograd, no autocast, no
/// observers, whatever the thread that a task happens to run on is about. Warnings are dropped:
/// CUDA's kernels would give others.
class KernelScope {
 public:
  KernelScope();

 private:
  c10::impl::ForceDispatchKeyGuard keys_;
  at::DisableRecordFunctionGuard unobserved_;
  c10::AutoGradMode no_grad_{false};
  c10::WarningUtils::WarningHandlerGuard no_warnings_;
};

/// A tensor of the CPU on the memory of a defined one of ours (or of any other). Holds no share in
/// it: a queue's tasks know memory by address, as a device's do.
at::Tensor cpu_alias(const at::Tensor& t);

/// The same for an output that a kernel may make larger on its way: it gets other memory then.
at::Tensor resizable_cpu_alias(const at::Tensor& t);

using TensorMap = std::function<at::Tensor(const at::Tensor&)>;

/// The value with each tensor replaced, undefined ones too, and a device by the CPU.
c10::IValue map_tensors(const c10::IValue& value, const TensorMap& map);

/// Calls `visit` for each tensor of a value, undefined ones too.
void for_each_tensor(const c10::IValue& value, const std::function<void(const at::Tensor&)>& visit);

}  // namespace tutti::test::fake_cuda
