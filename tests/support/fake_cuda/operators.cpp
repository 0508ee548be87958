// Every operator that has no implementation of its own here: queued with the CPU's kernel as its
// task, or run at once where its results are needed to go on.
#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include <algorithm>
#include <span>
#include <stdexcept>

#include "tests/support/fake_cuda/generators.h"
#include "tests/support/fake_cuda/guard.h"
#include "tests/support/fake_cuda/kernels.h"
#include "tests/support/fake_cuda/shapes.h"
#include "tests/support/fake_cuda/tensors.h"

namespace tutti::test::fake_cuda {
namespace {

using Args = std::span<const c10::IValue>;
using torch::jit::Stack;

// The device of the first of our tensors, else of a device argument, else the current one.
int device_of(Args args) {
  int device = -1;
  for (const auto& arg : args) {
    for_each_tensor(arg, [&](const at::Tensor& t) {
      if (device < 0 && is_ours(t)) device = t.device().index();
    });
    if (device >= 0) return device;
  }
  for (const auto& arg : args) {
    if (arg.isDevice() && arg.toDevice().has_index()) return arg.toDevice().index();
  }
  return current_device();
}

// As CUDA's kernels: one device, and numbers of the host that are tensors without dimensions.
void check_places(const Facts& facts, Args args, int device) {
  for (const auto& arg : args) {
    for_each_tensor(arg, [&](const at::Tensor& t) {
      if (!t.defined()) return;
      const bool fits = is_ours(t) ? t.device().index() == device
                                   : t.is_cpu() && (t.dim() == 0 || facts.takes_indices);
      TORCH_CHECK(fits,
                  "Expected all tensors to be on the same device, but found at least two devices, "
                  "cuda:",
                  device, " and ", t.device(), "! (", facts.name, ")");
    });
  }
}

bool has_mask(Args args) {
  bool found = false;
  for_each_tensor(args[1], [&](const at::Tensor& t) {
    found =
        found || (t.defined() && (t.scalar_type() == at::kBool || t.scalar_type() == at::kByte));
  });
  return found;
}

bool runs_at_once(const Facts& facts, Args args) {
  return !facts.returns_tensors || facts.shapes_depend_on_values ||
         (facts.takes_indices && has_mask(args));
}

// What the host hands in is read now, as a launch does; memory of devices is read when the task
// runs.
at::Tensor kernel_tensor(const at::Tensor& t) {
  if (is_ours(t)) return cpu_alias(t);
  // A number that was written in the program is nobody else's.
  return !t.defined() || t.unsafeGetTensorImpl()->is_wrapped_number() ? t : t.clone();
}

Stack kernel_args(const Facts& facts, Args args, int device) {
  const KernelScope kernels;  // for what is copied
  Stack stack;
  stack.reserve(args.size());
  for (const auto& arg : args) stack.push_back(map_tensors(arg, kernel_tensor));
  if (facts.generator >= 0) {
    const auto& given = args[facts.generator];
    stack[facts.generator] = at::detail::createCPUGenerator(
        draw_seed(given.isNone() ? std::nullopt : std::optional(given.toGenerator()), device));
  }
  return stack;
}

// An operator that waits in a queue.
struct Call {
  c10::OperatorHandle op;
  Stack args;
  std::vector<at::Tensor> targets;  // of its new tensors, in order
  std::vector<bool> is_new;         // of each return
  // Outputs among the arguments, as the kernel gets them, and their memory.
  std::vector<std::pair<at::Tensor, at::Tensor>> outputs;

  void run() const {
    const KernelScope kernels;
    Stack stack = args;  // a graph runs it again
    try {
      op.callBoxed(&stack);  // leaves the results there
    } catch (const c10::Error& failed) {
      throw std::runtime_error(failed.what_without_backtrace());
    }
    size_t next = 0;
    for (size_t i = 0; i < stack.size(); ++i) {
      if (!is_new[i]) continue;
      for_each_tensor(stack[i], [&](const at::Tensor& result) {
        const auto& target = targets[next++];
        if (target.defined() && target.numel() > 0) target.copy_(result);
      });
    }
    for (const auto& [given, memory] : outputs) {
      if (given.const_data_ptr() != memory.const_data_ptr()) memory.copy_(given);
    }
  }
};

c10::IValue new_results(const ReturnShapes& shapes, int device, std::vector<at::Tensor>& targets) {
  c10::List<at::Tensor> made;
  for (const auto& shape : shapes.tensors) {
    at::Tensor t;
    if (shape.defined) t = new_tensor(shape.sizes, shape.strides, shape.dtype, device);
    targets.push_back(t.defined() ? cpu_alias(t) : t);
    made.push_back(t);
  }
  return shapes.is_list ? c10::IValue(made) : c10::IValue(made.get(0));
}

Stack defer(const c10::OperatorHandle& op, const Facts& facts, const Rehearsal& rehearsal,
            Args args, int device) {
  for (const auto& [argument, shape] : rehearsal.resized) {
    resize_tensor(args[argument].toTensor(), shape.sizes);
  }
  auto call = std::make_shared<Call>(Call{.op = op,
                                          .args = kernel_args(facts, args, device),
                                          .targets = {},
                                          .is_new = {},
                                          .outputs = {}});
  for (const size_t output : facts.outputs) {
    if (!args[output].isTensor()) continue;
    const auto memory = call->args[output].toTensor();
    call->outputs.emplace_back(resizable_cpu_alias(memory), memory);
    call->args[output] = call->outputs.back().first;
  }
  Stack results;
  for (size_t i = 0; i < facts.same_as.size(); ++i) {
    const int same = facts.same_as[i];
    call->is_new.push_back(same < 0);
    results.push_back(same >= 0 ? args[same]
                                : new_results(rehearsal.returns[i], device, call->targets));
  }
  count_deferred();
  enqueue(current_queue(device), facts.name, [call] { call->run(); });
  return results;
}

at::Tensor on_device(const at::Tensor& result, int device) {
  if (!result.defined()) return result;
  const at::Tensor t = new_tensor(result.sizes(), result.strides(), result.scalar_type(), device);
  if (t.numel() > 0) cpu_alias(t).copy_(result);
  return t;
}

Stack run_now(const c10::OperatorHandle& op, const Facts& facts, Args args, int device) {
  count_synchronous(facts.name);
  wait_for(mark_of(current_queue(device)), facts.name);
  const Lock lock(lock_of_all());  // as a task
  Stack kernels_args = kernel_args(facts, args, device);
  for (size_t i = 0; i < args.size(); ++i) {  // an output without elements gets its size there
    if (facts.is_written[i] && args[i].isTensor() && args[i].toTensor().numel() == 0) {
      kernels_args[i] = at::empty_like(kernels_args[i].toTensor());
    }
  }
  const Stack before(kernels_args);
  Stack results;
  {
    const KernelScope kernels;
    op.callBoxed(&kernels_args);
  }
  for (size_t i = 0; i < args.size(); ++i) {
    if (!facts.is_written[i] || !args[i].isTensor()) continue;
    const auto& now = before[i].toTensor();
    const auto& ours = args[i].toTensor();
    if (now.sizes() == ours.sizes()) continue;
    resize_tensor(ours, now.sizes());
    const KernelScope kernels;
    cpu_alias(ours).copy_(now);
  }
  for (size_t i = 0; i < facts.same_as.size(); ++i) {
    const int same = facts.same_as[i];
    if (same >= 0) {
      results.push_back(args[same]);
      continue;
    }
    const KernelScope kernels;
    results.push_back(
        map_tensors(kernels_args[i], [&](const at::Tensor& t) { return on_device(t, device); }));
  }
  return results;
}

void call(const c10::OperatorHandle& op, Stack* stack) {
  const Facts& facts = facts_of(op);
  const Args args = std::span(*stack).last(facts.arguments);
  TORCH_CHECK_NOT_IMPLEMENTED(!facts.returns_view, facts.name, ": the fake CUDA has no such view");
  const int device = device_of(args);
  check_places(facts, args, device);
  const c10::DeviceGuard on({c10::kCUDA, static_cast<c10::DeviceIndex>(device)});
  const auto rehearsal = runs_at_once(facts, args) ? nullptr : rehearsal_of(op, facts, args);
  Stack results =
      rehearsal ? defer(op, facts, *rehearsal, args, device) : run_now(op, facts, args, device);
  stack->resize(stack->size() - facts.arguments);
  std::move(results.begin(), results.end(), std::back_inserter(*stack));
}

TORCH_LIBRARY_IMPL(_, CUDA, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&call>()); }

// Operators that would be composed of others here, and are one kernel on the CPU: the bits are that
// kernel's. Those of convolutions choose one by the device.
TORCH_LIBRARY_IMPL(aten, CUDA, m) {
  using c10::DispatchKey;
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const auto& name : dispatcher.getRegistrationsForDispatchKey(DispatchKey::CPU)) {
    const auto op = dispatcher.findOp(name);
    if (!op || name.getNamespace() != "aten") continue;
    if (op->hasKernelForDispatchKey(DispatchKey::CompositeExplicitAutograd) ||
        op->hasKernelForDispatchKey(DispatchKey::CompositeImplicitAutograd)) {
      m.impl(c10::toString(name).c_str(), torch::CppFunction::makeFromBoxedFunction<&call>());
    }
  }
  for (const char* name : {"convolution", "convolution_backward"}) {
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&call>());
  }
}

}  // namespace
}  // namespace tutti::test::fake_cuda
