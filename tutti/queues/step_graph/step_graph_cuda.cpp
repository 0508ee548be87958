// Step graphs by CUDA's stream capture: the one file of this module with CUDA's headers.
//
// As at::cuda::CUDAGraph, whose library programs of ours are not linked with
// (docs/design/build.md): the run-time library's C functions, and the allocator by its virtual
// ones. Memory of a captured step comes from a pool of its own, which LibTorch's cache gives to
// nobody else, since every replay writes there. Generators are not told of the capture: an operator
// that draws random numbers in it fails, as each replay would draw the same.
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <atomic>
#include <exception>

#include "tutti/base/error.h"
#include "tutti/queues/step_graph/step_graph.h"

namespace tutti {
namespace {

using Allocator = c10::cuda::CUDACachingAllocator::CUDAAllocator;

Allocator& allocator() {
  return static_cast<Allocator&>(*at::getDeviceAllocator(c10::DeviceType::CUDA));
}

void require(cudaError_t result, const char* call) {
  if (result == cudaSuccess) return;
  cudaGetLastError();  // so that the next operator does not report it again
  throw Error(fmt::format("step graph: {}: {}", call, cudaGetErrorString(result)));
}

// LibTorch numbers its own from 1.
c10::MempoolId_t new_pool() {
  static std::atomic<c10::CaptureId_t> next{c10::CaptureId_t{1} << 40};
  return {next++, 0};
}

/// While it lives, what is taken on the stream comes from the pool, and LibTorch knows of a
/// capture.
class InPool {
 public:
  InPool(c10::DeviceIndex device, c10::MempoolId_t pool, cudaStream_t stream)
      : device_(device), pool_(pool) {
    allocator().beginAllocateToPool(device, pool,
                                    [stream](cudaStream_t by) { return by == stream; });
    mark(true);
  }
  ~InPool() {
    mark(false);
    allocator().endAllocateToPool(device_, pool_);
  }
  InPool(const InPool&) = delete;
  InPool& operator=(const InPool&) = delete;

 private:
  // Since 2.12 it is told apart; before, the pool says it.
  void mark(bool begins) {
    const auto tell = [&](auto& to) {
      if constexpr (requires { to.markCaptureBegin(device_); })
        begins ? to.markCaptureBegin(device_) : to.markCaptureEnd(device_);
    };
    tell(allocator());
  }

  c10::DeviceIndex device_;
  c10::MempoolId_t pool_;
};

class CudaStepGraph final : public StepGraph {
 public:
  explicit CudaStepGraph(const DeviceQueue& queue)
      : device_(queue.device().index()),
        // NOLINTNEXTLINE(performance-no-int-to-ptr): a Stream is cudaStream_t as a number
        stream_(reinterpret_cast<cudaStream_t>(queue.handle().handle)),
        pool_(new_pool()) {}

  ~CudaStepGraph() override {
    if (made_ != nullptr) cudaGraphExecDestroy(made_);
    if (has_pool_) allocator().releasePool(device_, pool_);
  }

  // Of this thread alone: others may go on asking their events meanwhile, and autograd's thread may
  // take memory.
  void capture(const std::function<void()>& work) override {
    cudaGraph_t graph = nullptr;
    std::exception_ptr failure;
    {
      const InPool routed(device_, pool_, stream_);
      has_pool_ = true;
      require(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal),
              "cudaStreamBeginCapture");
      try {
        work();
      } catch (...) {
        failure = std::current_exception();
      }
      const cudaError_t ended = cudaStreamEndCapture(stream_, &graph);
      if (!failure) require(ended, "cudaStreamEndCapture");
    }
    if (failure) {
      cudaGetLastError();
      if (graph != nullptr) cudaGraphDestroy(graph);
      std::rethrow_exception(failure);
    }
    const cudaError_t made = cudaGraphInstantiateWithFlags(&made_, graph, 0);
    cudaGraphDestroy(graph);
    require(made, "cudaGraphInstantiate");
  }

  void replay() override { require(cudaGraphLaunch(made_, stream_), "cudaGraphLaunch"); }

 private:
  c10::DeviceIndex device_;
  cudaStream_t stream_;
  c10::MempoolId_t pool_;
  bool has_pool_ = false;
  cudaGraphExec_t made_ = nullptr;
};

}  // namespace

bool step_graph_available() noexcept { return true; }

std::unique_ptr<StepGraph> make_step_graph(const DeviceQueue& queue) {
  return std::make_unique<CudaStepGraph>(queue);
}

}  // namespace tutti
