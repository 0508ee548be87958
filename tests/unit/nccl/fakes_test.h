/// What tests of engines on the fake NCCL begin and end with.
#pragma once

#include <gmock/gmock.h>

#include "tests/support/fake_cuda/orders.h"
#include "tests/support/fake_nccl/fake_nccl.h"

namespace tutti::test {

class FakesTest : public testing::Test {
 protected:
  void SetUp() override {
    fake_cuda::set_order(fake_cuda::Order::lazy);
    reset_fakes();
  }
  // By now every group is gone: nothing may be left over, and no rule broken.
  void TearDown() override {
    EXPECT_THAT(fake_complaints(), testing::IsEmpty());
    reset_fakes();
  }
};

}  // namespace tutti::test
