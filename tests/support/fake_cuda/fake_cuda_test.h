/// The fixture of tests on the fake CUDA.
#pragma once

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include "tests/support/fake_cuda/fake_cuda.h"

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

/// Calls `run` in order eager, in order lazy, and with seeds 0 to `seeds` - 1.
template <class Run>
void in_all_orders(int seeds, Run run) {
  using fake_cuda::Order;
  for (const Order order : {Order::eager, Order::lazy}) {
    SCOPED_TRACE(order == Order::eager ? "eager" : "lazy");
    fake_cuda::set_order(order);
    run();
  }
  for (int seed = 0; seed < seeds; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    fake_cuda::set_order(Order::random, seed);
    run();
  }
}

}  // namespace tutti::test
