// Copies between devices and the host, and what else makes the host wait for values.
#include <ATen/ATen.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include "tests/support/fake_cuda/guard.h"
#include "tests/support/fake_cuda/kernels.h"
#include "tests/support/fake_cuda/memory.h"
#include "tests/support/fake_cuda/tensors.h"

namespace tutti::test::fake_cuda {
namespace {

constexpr std::string_view kCopy = "copy_";

void enqueue_copy(Queue& queue, const at::Tensor& from, const at::Tensor& to) {
  enqueue(queue, kCopy, [from, to] {
    const KernelScope kernels;
    to.copy_(from);
  });
}

// As CUDA: the work is the source's, and both devices' current streams wait for each other.
void copy_between_devices(const at::Tensor& from, const at::Tensor& to) {
  auto& here = current_queue(from.device().index());
  auto& there = current_queue(to.device().index());
  const Lock lock(lock_of_all());
  enqueue_wait(here, mark_of(there));
  enqueue_copy(here, cpu_alias(from), cpu_alias(to));
  enqueue_wait(there, mark_of(here));
}

// Pinned memory is read when the task runs; other memory now, as CUDA stages it.
void copy_to_device(const at::Tensor& from, const at::Tensor& to, bool non_blocking) {
  auto& queue = current_queue(to.device().index());
  const void* const host = from.const_data_ptr();
  if (is_pinned(host)) {
    enqueue_copy(queue, cpu_alias(from), cpu_alias(to));
    record_pinned_use(host, mark_of(queue));
  } else {
    const KernelScope kernels;
    enqueue_copy(queue, from.clone(), cpu_alias(to));
  }
  if (!non_blocking) wait_for(mark_of(queue), "a copy to the device");
}

void copy_to_host(const at::Tensor& from, const at::Tensor& to, bool non_blocking) {
  auto& queue = current_queue(from.device().index());
  const void* const host = to.const_data_ptr();
  enqueue_copy(queue, cpu_alias(from), cpu_alias(to));
  if (is_pinned(host)) record_pinned_use(host, mark_of(queue));
  if (!non_blocking || !is_pinned(host)) wait_for(mark_of(queue), "a copy to the host");
}

void copy_tensor(const at::Tensor& from, const at::Tensor& to, bool non_blocking) {
  if (to.numel() == 0) return;
  count_copy();
  if (!is_ours(from)) {
    TORCH_CHECK(from.is_cpu(), "copy_ from ", from.device(), " to ", to.device());
    copy_to_device(from, to, non_blocking);
  } else if (!is_ours(to)) {
    TORCH_CHECK(to.is_cpu(), "copy_ from ", from.device(), " to ", to.device());
    copy_to_host(from, to, non_blocking);
  } else if (from.device() != to.device()) {
    copy_between_devices(from, to);
  } else {
    enqueue_copy(current_queue(to.device().index()), cpu_alias(from), cpu_alias(to));
  }
}

at::Tensor& copy_(at::Tensor& to, const at::Tensor& from, bool non_blocking) {
  // Shapes are an error of the caller, now.
  copy_tensor(from.sizes() == to.sizes() ? from : from.expand_as(to), to, non_blocking);
  return to;
}

at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool non_blocking) {
  copy_tensor(from.expand_as(to), to, non_blocking);
  return to;
}

at::Tensor copy_from_and_resize(const at::Tensor& from, const at::Tensor& to) {
  if (is_ours(to)) {
    resize_tensor(to, from.sizes());
  } else {
    to.resize_(from.sizes());
  }
  copy_tensor(from, to, false);
  return to;
}

at::Scalar local_scalar(const at::Tensor& t) {
  wait_for(mark_of(current_queue(t.device().index())), "item()");
  const Lock lock(lock_of_all());
  const KernelScope kernels;
  return cpu_alias(t).item();
}

TORCH_LIBRARY_IMPL(aten, CUDA, m) {
  m.impl("copy_", copy_);
  m.impl("_copy_from", copy_from);
  m.impl("_copy_from_and_resize", copy_from_and_resize);
  m.impl("_local_scalar_dense", local_scalar);
}

}  // namespace
}  // namespace tutti::test::fake_cuda
