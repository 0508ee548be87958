/// Orders of work of the fake CUDA, one after another. Knows nothing of LibTorch.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "tutti/base/detail/queued_wait.h"

#include "tests/support/fake_cuda/fake_cuda.h"

namespace tutti::test {

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

/// With how many of the seeds 0 to `seeds` - 1 `goes_right` returns false, when every wait of that
/// name is left out.
inline int seeds_that_miss(const std::string& wait, int seeds,
                           const std::function<bool()>& goes_right) {
  fake_cuda::leave_out_blocks([&] {
    const char* const queued = detail::wait_being_queued();
    return queued != nullptr && wait == queued;
  });
  int wrong = 0;
  for (int seed = 0; seed < seeds; ++seed) {
    fake_cuda::set_order(fake_cuda::Order::random, static_cast<uint64_t>(seed));
    wrong += goes_right() ? 0 : 1;
  }
  fake_cuda::leave_out_blocks(nullptr);
  return wrong;
}

}  // namespace tutti::test
