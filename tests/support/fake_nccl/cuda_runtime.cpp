// CUDA's runtime interface on the queues of the fake CUDA.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "tests/support/fake_nccl/machine.h"

using tutti::test::fake_cuda::Lock;
using tutti::test::fake_cuda::lock_of_all;
using tutti::test::fake_cuda::Mark;
using tutti::test::fake_nccl::complain;
using tutti::test::fake_nccl::machine;
using tutti::test::fake_nccl::queue_of;

struct FakeEvent {
  Mark before;
  bool recorded = false;
};

namespace {

thread_local int device = 0;

cudaError_t state_at(const Mark& mark) { return query(mark) ? cudaSuccess : cudaErrorNotReady; }

}  // namespace

namespace tutti::test::fake_nccl {

Machine& machine() {
  static Machine all;
  return all;
}

void complain(bool holds, const std::string& rule) {
  if (!holds) machine().complaints.push_back(rule);
}

// Handles of LibTorch's streams, and those made here, are queues.
fake_cuda::Queue& queue_of(cudaStream_t stream) {
  return stream == nullptr ? fake_cuda::queue_of(device, 0)
                           : *reinterpret_cast<fake_cuda::Queue*>(stream);
}

}  // namespace tutti::test::fake_nccl

const char* cudaGetErrorString(cudaError_t /*error*/) { return "an error of CUDA"; }
const char* cudaGetErrorName(cudaError_t /*error*/) { return "cudaErrorOfTheTest"; }

cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = 13000;
  return cudaSuccess;
}

cudaError_t cudaGetDevice(int* current) {
  *current = device;
  return cudaSuccess;
}

cudaError_t cudaSetDevice(int wanted) {
  device = wanted;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetPCIBusId(char* id, int length, int of) {
  std::snprintf(id, static_cast<size_t>(length), "0000:%02x:00.0", of + 1);
  return cudaSuccess;
}

cudaError_t cudaMalloc(void** memory, size_t bytes) {
  const Lock lock(lock_of_all());
  *memory = machine().memory.emplace_back(std::calloc(1, bytes), std::free).get();
  machine().live.insert(*memory);
  return cudaSuccess;
}

cudaError_t cudaFree(void* memory) {
  const Lock lock(lock_of_all());
  machine().live.erase(memory);
  return cudaSuccess;
}

// The host's memory is read and written when a copy runs, as pinned memory is.
cudaError_t cudaHostAlloc(void** memory, size_t bytes, unsigned /*flags*/) {
  return cudaMalloc(memory, bytes);
}

cudaError_t cudaFreeHost(void* memory) { return cudaFree(memory); }

cudaError_t cudaMemsetAsync(void* memory, int value, size_t bytes, cudaStream_t stream) {
  enqueue(queue_of(stream), "cudaMemsetAsync", [=] { std::memset(memory, value, bytes); });
  return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind /*kind*/,
                            cudaStream_t stream) {
  enqueue(queue_of(stream), "cudaMemcpyAsync", [=] { std::memcpy(to, from, bytes); });
  return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  const Lock lock(lock_of_all());
  complain(flags == cudaStreamNonBlocking, "a stream that waits for the default stream");
  const int number = tutti::test::fake_cuda::kStreams + machine().streams++;
  auto& queue = tutti::test::fake_cuda::queue_of(device, number);
  *stream = reinterpret_cast<cudaStream_t>(&queue);
  machine().live.insert(*stream);
  return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  const Lock lock(lock_of_all());
  machine().live.erase(stream);
  return cudaSuccess;
}

cudaError_t cudaStreamQuery(cudaStream_t stream) { return state_at(mark_of(queue_of(stream))); }

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned /*flags*/) {
  const bool is_left_out = tutti::test::fake_cuda::block_is_left_out();
  const Lock lock(lock_of_all());
  machine().calls.emplace_back("wait event");
  complain(event->recorded, "a wait for an event that was not recorded");
  if (!is_left_out) enqueue_wait(queue_of(stream), event->before);
  return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  const Lock lock(lock_of_all());
  complain(flags == cudaEventDisableTiming, "an event that takes the time");
  *event = std::make_unique<FakeEvent>().release();
  machine().live.insert(*event);
  return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  const Lock lock(lock_of_all());
  machine().live.erase(event);
  const std::unique_ptr<FakeEvent> owned(event);
  return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  const Lock lock(lock_of_all());
  machine().calls.emplace_back("record event");
  complain(!tutti::test::fake_nccl::is_launching_on(stream),
           "an event recorded before the kernels are on the stream");
  event->recorded = true;
  event->before = mark_of(queue_of(stream));
  return cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  const Lock lock(lock_of_all());
  return state_at(event->before);
}
