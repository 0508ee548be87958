// LibTorch's vector functions choose their kernels before replicas compute.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <mutex>
#include <thread>
#include <vector>

#include "tutti/strategy/strategy.h"

namespace {

std::mutex asked_mutex;
std::vector<std::thread::id> asked;

}  // namespace

// MKL asks this for the processor while it chooses: here in its place, to see who asks, and when.
extern "C" __attribute__((visibility("default"))) int mkl_serv_vml_cpu_detect() {
  {
    const std::lock_guard lock(asked_mutex);
    asked.push_back(std::this_thread::get_id());
  }
  const auto own = reinterpret_cast<int (*)()>(::dlsym(RTLD_NEXT, "mkl_serv_vml_cpu_detect"));
  return own();
}

namespace tutti {
namespace {

TEST(VectorMath, IsSettledBeforeReplicasCompute) {
  if (!at::hasMKL() || ::dlsym(RTLD_NEXT, "mkl_serv_vml_cpu_detect") == nullptr)
    GTEST_SKIP() << "this LibTorch has no MKL";
  Strategy strategy({.kind = "mirrored", .replicas = 2, .threads_per_replica = 1, .seed = 5});
  const size_t before = asked.size();
  ASSERT_GE(before, 1U);
  EXPECT_EQ(asked.front(), std::this_thread::get_id());
  strategy.run([](ReplicaContext&) { at::ones({64}).sqrt_(); });
  EXPECT_EQ(asked.size(), before);
}

}  // namespace
}  // namespace tutti
