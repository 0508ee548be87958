/// CUDA's and NCCL's objects with one owner each, and their errors as ours.
/// Thread rule: as a unique_ptr, one thread at a time.
#pragma once

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <utility>

#include "tutti/base/detail/queued_wait.h"
#include "tutti/base/error.h"

namespace tutti::detail::nccl {

/// A call of CUDA or NCCL failed.
class CallError : public Error {
 public:
  using Error::Error;
};

/// Throws CallError with CUDA's words. `call`: "cudaEventRecord".
inline void check_cuda(cudaError_t code, const char* call) {
  if (code != cudaSuccess)
    throw CallError(
        fmt::format("{}: {} ({})", call, cudaGetErrorString(code), cudaGetErrorName(code)));
}

/// Makes `device` the calling thread's while it lives.
class OnDevice {
 public:
  explicit OnDevice(int device) {
    check_cuda(cudaGetDevice(&before_), "cudaGetDevice");
    if (before_ != device) check_cuda(cudaSetDevice(device), "cudaSetDevice");
  }
  ~OnDevice() { (void)cudaSetDevice(before_); }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;

 private:
  int before_ = 0;
};

/// An event without timing.
class Event {
 public:
  Event() {
    check_cuda(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming), "cudaEventCreate");
  }
  Event(Event&& other) noexcept : event_(std::exchange(other.event_, nullptr)) {}
  Event& operator=(Event&& other) noexcept {
    std::swap(event_, other.event_);
    return *this;
  }
  ~Event() {
    if (event_ != nullptr) (void)cudaEventDestroy(event_);
  }

  void record(cudaStream_t stream) {
    check_cuda(cudaEventRecord(event_, stream), "cudaEventRecord");
  }
  /// What is queued on `stream` from now on waits for it. `wait` names this wait.
  void hold(cudaStream_t stream, const char* wait) const {
    const QueuedWait named(wait);
    check_cuda(cudaStreamWaitEvent(stream, event_, 0), "cudaStreamWaitEvent");
  }
  bool reached() const {
    const cudaError_t code = cudaEventQuery(event_);
    if (code == cudaErrorNotReady) return false;
    check_cuda(code, "cudaEventQuery");
    return true;
  }

 private:
  cudaEvent_t event_ = nullptr;
};

}  // namespace tutti::detail::nccl
