// Engine nccl on a real device: a group of one, and of two on one device, which newer NCCL allows
// when NCCL_MULTI_RANK_GPU_ENABLE is set, and others refuse; and hier, as many hosts that share the
// device. Built where NCCL is, skipped where no device is.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "tutti/comm/group/group.h"
#include "tutti/comm/nccl/nccl_hier.h"

#include "tests/support/comm.h"
#include "tests/support/meeting.h"

namespace tutti::test {
namespace {

void expect_success(cudaError_t code) { ASSERT_EQ(code, cudaSuccess) << cudaGetErrorString(code); }

// float32 values in memory of device 0.
class DeviceFloats {
 public:
  explicit DeviceFloats(const std::vector<float>& values) : count_(values.size()) {
    expect_success(cudaMalloc(&memory_, bytes()));
    expect_success(cudaMemcpy(memory_, values.data(), bytes(), cudaMemcpyHostToDevice));
  }
  ~DeviceFloats() { cudaFree(memory_); }
  DeviceFloats(const DeviceFloats&) = delete;
  DeviceFloats& operator=(const DeviceFloats&) = delete;

  MemorySpan span() const {
    return {memory_, static_cast<int64_t>(count_), DType::float32, {Place::Kind::cuda, 0, {}}};
  }
  std::vector<float> values() const {
    std::vector<float> all(count_);
    expect_success(cudaMemcpy(all.data(), memory_, bytes(), cudaMemcpyDeviceToHost));
    return all;
  }

 private:
  size_t bytes() const { return count_ * sizeof(float); }
  void* memory_ = nullptr;
  size_t count_;
};

constexpr const char* kRefused = "this NCCL refuses two ranks on one device";

class NcclDevice : public testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    int devices = 0;
    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0)
      GTEST_SKIP() << "needs a CUDA device";
    setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1", 1);
  }

  /// None where NCCL refuses two ranks on a device.
  std::vector<std::shared_ptr<Engine>> make() const {
    const auto n = static_cast<size_t>(GetParam());
    InProcessMeeting meeting(GetParam());
    std::vector<std::shared_ptr<Engine>> engines(n);
    std::vector<std::string> errors(n);
    std::vector<std::thread> threads;
    for (size_t r = 0; r < n; ++r)
      threads.emplace_back([&, r] {
        try {
          engines[r] = make_nccl(*meeting.place(static_cast<int>(r)));
        } catch (const std::exception& error) {
          errors[r] = error.what();
        }
      });
    for (auto& thread : threads) thread.join();
    const bool refused = std::ranges::any_of(
        errors, [](const std::string& error) { return error.find("invalid usage") != error.npos; });
    if (n > 1 && refused) return {};
    for (const std::string& error : errors) EXPECT_EQ(error, "");
    return engines;
  }
};

// Whole numbers: exact in any order.
TEST_P(NcclDevice, AllReduceAddsAndAverages) {
  const int n = GetParam();
  const auto engines = make();
  if (engines.empty()) GTEST_SKIP() << kRefused;
  run_all_members(engines, [n](Group group) {
    for (int64_t length : {1, 1000, 1'000'003}) {
      std::vector<float> values(static_cast<size_t>(length));
      std::iota(values.begin(), values.end(), static_cast<float>(group.rank()));
      const DeviceFloats data(values);
      group.all_reduce(data.span(), ReduceOp::sum).wait();
      EXPECT_EQ(data.values().front(), static_cast<float>(n * (n - 1)) / 2);
      group.all_reduce(data.span(), ReduceOp::mean).wait();
      EXPECT_EQ(data.values().front(), static_cast<float>(n * (n - 1)) / 2);
    }
  });
}

// As many hosts, which share the device: each has an NCCL of its own, and shared memory in between.
TEST_P(NcclDevice, AddsUpOverHostsByPinnedMemory) {
  const int n = GetParam();
  const auto rails = make_engines("shm", n);
  std::vector<std::shared_ptr<Engine>> engines;
  for (int r = 0; r < n; ++r) {
    InProcessMeeting alone(1);
    const auto place = alone.place(0);
    engines.push_back(make_nccl_hier({.rank = r,
                                      .size = n,
                                      .inside = place.get(),
                                      .rail = rails[static_cast<size_t>(r)],
                                      .chunk_bytes = 1 << 16}));
  }
  run_all_members(engines, [n](Group group) {
    std::vector<float> values(1'000'003);
    std::iota(values.begin(), values.end(), static_cast<float>(group.rank()));
    const DeviceFloats data(values);
    group.all_reduce(data.span(), ReduceOp::sum).wait();
    const auto sums = data.values();
    const auto apart = static_cast<float>(n * (n - 1)) / 2;
    for (size_t i = 0; i < sums.size(); i += 1000)
      ASSERT_EQ(sums[i], static_cast<float>(n) * static_cast<float>(i) + apart) << i;
  });
}

TEST_P(NcclDevice, MovesPartsOfUnequalLength) {
  const int n = GetParam();
  const auto engines = make();
  if (engines.empty()) GTEST_SKIP() << kRefused;
  run_all_members(engines, [n](Group group) {
    std::vector<int64_t> counts;
    for (int r = 0; r < n; ++r) counts.push_back(100 * r + 7);
    const int64_t total = std::accumulate(counts.begin(), counts.end(), int64_t{0});
    const DeviceFloats mine(std::vector<float>(static_cast<size_t>(counts[group.rank()]),
                                               static_cast<float>(group.rank() + 1)));
    const DeviceFloats all(std::vector<float>(static_cast<size_t>(total)));
    group.all_gather(mine.span(), all.span(), counts).wait();
    EXPECT_EQ(all.values().front(), 1);
    EXPECT_EQ(all.values().back(), static_cast<float>(n));
    group.barrier();
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, NcclDevice, testing::Values(1, 2));

}  // namespace
}  // namespace tutti::test
