/// The fixture of tests of replicas on devices in several processes: no rule of NCCL is broken, and
/// all is given back.
#pragma once

#include <gmock/gmock.h>

#include "tests/support/device_processes.h"
#include "tests/support/fake_cuda/fake_cuda_test.h"
#include "tests/support/fake_nccl/fake_nccl.h"

namespace tutti::test {

class DevicesOfProcesses : public FakeCudaTest {
 protected:
  void SetUp() override {
    FakeCudaTest::SetUp();
    if (IsSkipped()) return;
    fake_cuda::set_devices(4);
    reset_fakes();
  }
  void TearDown() override {
    if (fake_cuda::available()) {
      EXPECT_THAT(fake_complaints(), ::testing::IsEmpty());
    }
    FakeCudaTest::TearDown();
  }

  /// The weights that replicas of one device have, which take turns.
  static at::Tensor oracle(const ProcessesJob& job) {
    fake_cuda::set_order(fake_cuda::Order::eager);
    return weights_of(DeviceJob{.kind = "one_device",
                                .replicas = job.replicas(),
                                .device = "cuda:0",
                                .recipe = job.recipe,
                                .steps = job.steps,
                                .unused = job.unused})[0];
  }
};

}  // namespace tutti::test
