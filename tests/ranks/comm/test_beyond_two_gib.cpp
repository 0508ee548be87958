// Lengths and offsets of 64 bits.
#include <gtest/gtest.h>

#include <cstdlib>

#include "tutti/base/host.h"

#include "tests/support/comm.h"

namespace tutti {
namespace {

// Beyond 2 GiB: lengths and offsets are 64-bit everywhere. Takes 5 GB and about 10 s.
class BeyondTwoGiB : public testing::Test {
 protected:
  static constexpr int64_t kBytes = (int64_t{1} << 31) + 4098;
  static constexpr Millis kLimit{240'000};

  void SetUp() override {
    if (read_host_facts().memory_left_bytes() < 4 * kBytes ||
        std::getenv("TUTTI_TEST_LARGE") == nullptr)
      GTEST_SKIP() << "needs TUTTI_TEST_LARGE=1 and 8.6 GB of memory";
  }

  /// Each rank's memory is all zeros.
  static void reduce_broadcast_and_send(Group& group, void* memory) {
    const MemorySpan mine{memory, kBytes / 2, DType::bfloat16};
    auto* numbers = static_cast<uint16_t*>(memory);
    const uint16_t one = 0x3f80, two = 0x4000;
    numbers[0] = numbers[mine.num_elements / 2] = numbers[mine.num_elements - 1] = one;
    group.all_reduce(mine, ReduceOp::sum, kLimit).wait(kLimit);
    EXPECT_EQ(numbers[0], two);
    EXPECT_EQ(numbers[1], 0);
    EXPECT_EQ(numbers[mine.num_elements / 2], two);
    EXPECT_EQ(numbers[mine.num_elements - 1], two);
    const MemorySpan bytes{memory, kBytes, DType::uint8};
    auto* const letters = static_cast<unsigned char*>(memory);
    letters[kBytes - 5] = group.rank() == 1 ? 77 : 0;
    group.broadcast(bytes, 1, kLimit).wait(kLimit);
    EXPECT_EQ(letters[kBytes - 5], 77);
    if (group.rank() == 0) {
      letters[kBytes - 3] = 99;
      group.send(bytes, 1, 0, kLimit).wait(kLimit);
    } else {
      group.recv(bytes, 0, 0, kLimit).wait(kLimit);
    }
    EXPECT_EQ(letters[kBytes - 3], 99);
  }
};

TEST_F(BeyondTwoGiB, ReducesBroadcastsAndSends) {
  test::run_all_members(test::make_engines("shm", 2), [&](Group group) {
    const SharedParts shared = group.allocate(kBytes);
    reduce_broadcast_and_send(group, shared.parts[group.rank()].data);
  });
}

TEST_F(BeyondTwoGiB, TheSameOverTcp) {
  test::run_all_members(test::make_engines("tcp", 2), [&](Group group) {
    std::vector<std::byte> memory(kBytes);
    reduce_broadcast_and_send(group, memory.data());
  });
}

}  // namespace
}  // namespace tutti
