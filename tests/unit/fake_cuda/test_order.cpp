// Whatever the order of work, correct code has the CPU's bits; a wait that is missing shows in
// some.
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <gmock/gmock.h>

#include "tests/support/fake_cuda/fake_cuda_test.h"
#include "tests/unit/fake_cuda/nets.h"

namespace tutti::test {
namespace {

const c10::Device kDevice(c10::DeviceType::CUDA, 0);

class Nets : public FakeCudaTest, public testing::WithParamInterface<SmallNet> {};

TEST_P(Nets, HaveTheBitsOfTheCpuInEveryOrder) {
  const auto expected = train(GetParam(), at::kCPU, 15);
  const auto before = fake_cuda::counts();
  in_all_orders(10, [&] { EXPECT_TRUE(same_bits(train(GetParam(), kDevice, 15), expected)); });
  const auto used = fake_cuda::counts() - before;
  EXPECT_GT(used.deferred, 12 * 15 * 10U);
  EXPECT_EQ(used.synchronous, 0U) << testing::PrintToString(fake_cuda::synchronous_operators());
}

INSTANTIATE_TEST_SUITE_P(Small, Nets, testing::ValuesIn(small_nets()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace tutti::test
