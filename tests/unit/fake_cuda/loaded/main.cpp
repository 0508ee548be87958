// A program that knows nothing of the fake: it opens the CUDA library that it finds, as tutti does,
// and trains. Prints what a test wants to know of it.
#include <ATen/DeviceAccelerator.h>
#include <dlfcn.h>
#include <torch/cuda.h>

#include <cstdio>

#include "tests/unit/fake_cuda/nets.h"

int main() {
  if (dlopen("libtorch_cuda.so", RTLD_NOW | RTLD_GLOBAL) == nullptr) {
    std::printf("not loaded: %s\n", dlerror());
    return 1;
  }
  const auto kind = at::accelerator::getAccelerator();
  std::printf("accelerator %s\n",
              kind ? c10::DeviceTypeName(*kind, /*lower_case=*/true).c_str() : "none");
  std::printf("devices %d\n", static_cast<int>(torch::cuda::device_count()));
  if (torch::cuda::device_count() == 0) return 0;
  const c10::Device last(c10::kCUDA,
                         static_cast<c10::DeviceIndex>(torch::cuda::device_count() - 1));
  std::printf("memory %zu\n", at::accelerator::getMemoryInfo(last.index()).second);
  at::set_num_threads(1);
  try {
    const auto& net = tutti::test::small_nets()[1];
    const bool same = tutti::test::same_bits(tutti::test::train(net, last, 5),
                                             tutti::test::train(net, at::kCPU, 5));
    std::printf("bits %s\n", same ? "same" : "others");
  } catch (const std::exception& error) {
    std::printf("error %s\n", error.what());
    return 1;
  }
  return 0;
}
