/// The fixture of tests on the fake CUDA.
#pragma once

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include "tests/support/fake_cuda/orders.h"

namespace tutti::test {

/// Skipped where there is no fake; starts and ends as fake_cuda::reset() leaves it. One thread for
/// kernels: with more, their sums would depend on the thread that runs a task.
class FakeCudaTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!fake_cuda::available()) GTEST_SKIP() << "needs LibTorch 2.13 or newer, without CUDA";
    at::set_num_threads(1);
    fake_cuda::reset();
  }
  void TearDown() override {
    if (fake_cuda::available()) fake_cuda::reset();
  }
};

}  // namespace tutti::test
