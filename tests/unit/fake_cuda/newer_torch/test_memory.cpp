// Memory of the devices: NaN where nothing was written, limits and statistics as CUDA's allocator
// has them, and no growth over many steps.
#include <ATen/DeviceAccelerator.h>
#include <c10/core/AllocatorConfig.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/DeviceGuard.h>
#include <gmock/gmock.h>
#include <malloc.h>
#include <torch/torch.h>

#include <cstdio>

#include "tests/support/fake_cuda/fake_cuda_test.h"

namespace tutti::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr int64_t kMebibyte = 1 << 20;
const c10::Device kFirst(c10::DeviceType::CUDA, 0);
const c10::Device kSecond(c10::DeviceType::CUDA, 1);

at::Tensor mebibytes(int64_t number, c10::Device device = kFirst) {
  return torch::empty({number * kMebibyte}, torch::TensorOptions().dtype(at::kByte).device(device));
}

class Memory : public FakeCudaTest {
 protected:
  void SetUp() override {
    FakeCudaTest::SetUp();
    if (!IsSkipped()) used_before_ = used();
  }
  void TearDown() override {
    c10::CachingAllocator::setAllocatorSettings("per_process_memory_fraction:1.0");
  }

  static int64_t used(c10::Device device = kFirst) {
    return at::accelerator::getDeviceStats(device.index()).allocated_bytes[0].current;
  }
  // Of our own, since other tests may have left tensors.
  int64_t used_here() const { return used() - used_before_; }

  int64_t used_before_ = 0;
};

TEST_F(Memory, IsNaNUntilItIsWritten) {
  for (const auto dtype : {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16}) {
    EXPECT_TRUE(torch::empty({5}, torch::TensorOptions().dtype(dtype).device(kFirst))
                    .isnan()
                    .all()
                    .item<bool>());
  }
  EXPECT_EQ(
      torch::empty({1}, torch::TensorOptions().dtype(at::kLong).device(kFirst)).item<int64_t>(),
      -1);
}

TEST_F(Memory, IsNaNAgainOnceItIsFreed) {
  for (int i = 0; i < 3; ++i) {
    auto x = torch::ones({333}, kFirst);
    EXPECT_EQ(x.sum().item<double>(), 333);
    x = at::Tensor();
    EXPECT_TRUE(torch::empty({333}, kFirst).isnan().all().item<bool>());
  }
}

TEST_F(Memory, IsCountedInBlocksOf512Bytes) {
  at::accelerator::resetPeakStats(0);
  const auto peak_before = at::accelerator::getDeviceStats(0).allocated_bytes[0].peak;
  auto x = torch::empty({1}, kFirst);
  EXPECT_EQ(used_here(), 512);
  auto y = mebibytes(3);
  EXPECT_EQ(used_here(), 512 + 3 * kMebibyte);
  y = x = at::Tensor();
  EXPECT_EQ(used_here(), 0) << "freed on the host, whatever the queues have yet to do";
  EXPECT_EQ(at::accelerator::getDeviceStats(0).allocated_bytes[0].peak - peak_before,
            512 + 3 * kMebibyte);
  const auto [available, total] = at::accelerator::getMemoryInfo(0);
  EXPECT_EQ(total, 1024U * kMebibyte);
  EXPECT_EQ(available, total - static_cast<size_t>(used()));
}

TEST_F(Memory, OfADeviceEndsAtItsTotal) {
  fake_cuda::set_memory(1, 10 * kMebibyte);
  const auto held = mebibytes(8, kSecond);
  try {
    mebibytes(3, kSecond);
    FAIL() << "3 MiB of 2";
  } catch (const c10::OutOfMemoryError& error) {
    EXPECT_THAT(error.what(),
                AllOf(HasSubstr("CUDA out of memory. Tried to allocate 3.00 MiB. GPU 1"),
                      HasSubstr("total capacity of 10.00 MiB of which 2.00 MiB is free")));
  }
  EXPECT_NO_THROW(mebibytes(2, kSecond));
  EXPECT_NO_THROW(mebibytes(100)) << "the other device has its own";
  EXPECT_EQ(at::accelerator::getDeviceStats(1).num_ooms, 1);
}

TEST_F(Memory, AnAllocationFailsAtATest) {
  fake_cuda::fail_allocation(0, 3);
  EXPECT_NO_THROW(mebibytes(1));
  EXPECT_NO_THROW(mebibytes(1, kSecond));
  EXPECT_NO_THROW(mebibytes(1));
  EXPECT_THROW(mebibytes(1), c10::OutOfMemoryError);
  EXPECT_NO_THROW(mebibytes(1));
}

TEST_F(Memory, MayBeLimitedToAPart) {
  fake_cuda::set_memory(0, used_before_ + 100 * kMebibyte);
  c10::CachingAllocator::setAllocatorSettings(
      "expandable_segments:True,per_process_memory_fraction:0.5");
  const auto held = mebibytes(45);
  EXPECT_THAT([] { mebibytes(10); }, testing::Throws<c10::OutOfMemoryError>(testing::Property(
                                         &c10::Error::msg, HasSubstr("50.00 MiB allowed"))));
  c10::CachingAllocator::setAllocatorSettings("per_process_memory_fraction:1.0");
  EXPECT_NO_THROW(mebibytes(10));
}

TEST_F(Memory, SettingsThatCudaDoesNotKnowAreErrors) {
  EXPECT_THROW(c10::CachingAllocator::setAllocatorSettings("no_such_key:1"), c10::ValueError);
  EXPECT_THROW(c10::CachingAllocator::setAllocatorSettings("per_process_memory_fraction:1.5"),
               c10::ValueError);
  EXPECT_NO_THROW(c10::CachingAllocator::setAllocatorSettings(
      "max_split_size_mb:200,roundup_power2_divisions:[64:8,>:1]"));
}

TEST_F(Memory, OfStoragesThatGrowIsCopiedInOrder) {
  auto x = torch::zeros({4}, kFirst);
  x.add_(3);
  x.resize_({1000});
  x.narrow(0, 0, 4).add_(1);
  EXPECT_EQ(x.narrow(0, 0, 4).sum().item<double>(), 16);
  EXPECT_TRUE(x.narrow(0, 4, 996).isnan().all().item<bool>());
}

// What is in use, whatever the heap keeps of what was freed.
int64_t mebibytes_in_use() {
  const auto facts = mallinfo2();
  return static_cast<int64_t>(facts.uordblks + facts.hblkhd) / kMebibyte;
}

TEST_F(Memory, OfTheHostDoesNotGrowWithTheSteps) {
  in_all_orders(0, [] {
    const auto before = mebibytes_in_use();
    for (int step = 0; step < 200; ++step) {  // each of another size, and nobody waits
      auto x = torch::ones({kMebibyte + step * 128}, kFirst);
      x.mul_(2);
    }
    EXPECT_LT(mebibytes_in_use() - before, 600);
    fake_cuda::run_all();
  });
}

}  // namespace
}  // namespace tutti::test
