// What goes to devices and comes from them beside the work of replicas: batches, copies for the
// host, values read late. In whatever order the devices work, without a wait of the host; and of
// each wait between queues that it is needed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <string_view>

#include "tutti/base/error.h"
#include "tutti/queues/host_copies.h"
#include "tutti/queues/late_reads.h"
#include "tutti/queues/upload.h"

#include "tests/support/fake_cuda/fake_cuda_test.h"
#include "tests/support/message_of.h"

namespace tutti {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int kSeeds = 30;
constexpr Millis kLimit{20'000};

class SideQueues : public test::FakeCudaTest {
 protected:
  static at::Device gpu() { return {at::kCUDA, 0}; }
  static DeviceQueue queue() { return {gpu(), "replica 0 (cuda:0)"}; }

  /// Whether one of many orders of work makes `run` give something else than true.
  template <class Run>
  static bool some_order_breaks(Run run) {
    bool broken = false;
    test::in_all_orders(kSeeds, [&] { broken = broken || !run(); });
    return broken;
  }
  static void leave_out(std::string_view wait) {
    test::fake_cuda::leave_out_blocks([wait] {
      const char* const queued = detail::wait_being_queued();
      return queued != nullptr && queued == wait;
    });
  }
};

at::Tensor numbers(int64_t first, int64_t count = 64) {
  return torch::arange(first, first + count, at::kFloat);
}

// Ten batches, each squared and added up on the device; true where the sum is right.
bool sums_of_batches_are_right() {
  const DeviceQueue queue({at::kCUDA, 0}, "replica 0 (cuda:0)");
  Uploads uploads(queue);
  const OnQueue on(queue);
  at::Tensor sum = torch::zeros({64}, at::Device(at::kCUDA, 0));
  at::Tensor expected = torch::zeros({64});
  for (int64_t step = 0; step < 10; ++step) {
    at::Tensor batch = numbers(step);
    expected += batch * batch;
    const at::Tensor there = uploads.copy({batch}, Deadline(kLimit)).front();
    batch.fill_(-1);  // the host's again
    sum += there * there;
  }
  return sum.cpu().equal(expected);
}

TEST_F(SideQueues, BatchesAreThereWhenTheyAreUsed) {
  EXPECT_FALSE(some_order_breaks(sums_of_batches_are_right));
}

TEST_F(SideQueues, BatchesNeedTheWaitForTheirCopy) {
  leave_out(Uploads::kWait);
  EXPECT_TRUE(some_order_breaks(sums_of_batches_are_right));
}

TEST_F(SideQueues, BatchesNeedTheirMemoryKeptForTheReplicasQueue) {
  test::fake_cuda::leave_out_records([] { return true; });
  EXPECT_TRUE(some_order_breaks(sums_of_batches_are_right));
}

TEST_F(SideQueues, TheHostWaitsForNoBatch) {
  test::in_all_orders(2, [] {
    const DeviceQueue queue({at::kCUDA, 0}, "replica 0 (cuda:0)");
    Uploads uploads(queue);
    const OnQueue on(queue);
    const auto before = test::fake_cuda::counts();
    for (int64_t step = 0; step < 100; ++step)
      uploads.copy({numbers(step), at::Tensor(), torch::tensor({step})}, Deadline(kLimit));
    EXPECT_EQ((test::fake_cuda::counts() - before).host_waits, 0U);
  });
}

TEST_F(SideQueues, UndefinedTensorsStaySoAndDtypesAreKept) {
  Uploads uploads(queue());
  const auto there = uploads.copy({torch::tensor({int64_t{7}}), at::Tensor(), torch::tensor({2.5})},
                                  Deadline(kLimit));
  ASSERT_EQ(there.size(), 3U);
  EXPECT_EQ(there[0].scalar_type(), at::kLong);
  EXPECT_EQ(there[0].device(), gpu());
  EXPECT_FALSE(there[1].defined());
  EXPECT_EQ(there[2].scalar_type(), at::kFloat);
}

TEST_F(SideQueues, OnTheCpuBatchesAreTheHostsOwn) {
  Uploads uploads{DeviceQueue()};
  const at::Tensor batch = numbers(3);
  EXPECT_TRUE(uploads.copy({batch}, Deadline(kLimit)).front().is_same(batch));
  EXPECT_TRUE(on_device(batch, at::kCPU).is_same(batch));
  EXPECT_TRUE(on_host(batch, Deadline(kLimit), "a test").is_same(batch));
}

// A device that hangs shows how far ahead the host goes.
TEST_F(SideQueues, BatchesAheadAreBoundByTheirBytes) {
  const int64_t bytes = 64 * 4;
  Uploads uploads(queue(), 5 * bytes);
  test::fake_cuda::stick(0);
  int copied = 0;
  const auto copy_all = [&] {
    for (; copied < 100; ++copied) uploads.copy({numbers(copied)}, Deadline(Millis{20}));
  };
  EXPECT_THAT(test::message_of<Timeout>(copy_all),
              HasSubstr("waited 20 ms for the steps whose batches"));
  EXPECT_EQ(copied, 6);
}

// The copies are of what was there, whatever is queued after they were asked for.
bool copies_are_of_their_time() {
  const at::Device gpu(at::kCUDA, 0);
  at::Tensor values = torch::zeros({64}, gpu);
  bool right = true;
  std::vector<HostCopies> all;
  for (int step = 1; step <= 5; ++step) {
    values += 1;
    all.emplace_back(at::TensorList(values));
  }
  values.fill_(-1);
  for (int step = 1; step <= 5; ++step) {
    const HostCopies& copies = all[static_cast<size_t>(step) - 1];
    copies.wait(Deadline(kLimit), "a test");
    right = right && copies.tensors()[0].eq(step).all().item<bool>();
  }
  return right;
}

TEST_F(SideQueues, CopiesForTheHostAreOfTheirTime) {
  EXPECT_FALSE(some_order_breaks(copies_are_of_their_time));
}

TEST_F(SideQueues, CopiesForTheHostNeedBothWaits) {
  for (const char* const wait : {HostCopies::kWaitForTensors, HostCopies::kWaitForCopies}) {
    leave_out(wait);
    EXPECT_TRUE(some_order_breaks(copies_are_of_their_time)) << wait;
  }
}

TEST_F(SideQueues, CopiesOfSeveralDevicesKeepTheirOrderAndWaitForNoHost) {
  const at::Tensor first = numbers(1).to(at::Device(at::kCUDA, 1));
  const at::Tensor second = numbers(2).to(gpu()), third = numbers(3);
  const auto before = test::fake_cuda::counts();
  const HostCopies copies({first, at::Tensor(), second, third});
  EXPECT_EQ((test::fake_cuda::counts() - before).host_waits, 0U);
  copies.wait(Deadline(kLimit), "a test");
  EXPECT_TRUE(copies.tensors()[0].equal(numbers(1)));
  EXPECT_FALSE(copies.tensors()[1].defined());
  EXPECT_TRUE(copies.tensors()[2].equal(numbers(2)));
  EXPECT_TRUE(copies.tensors()[3].is_same(third));
}

TEST_F(SideQueues, ADeviceThatHangsIsNamedByWhoWaitsForItsCopies) {
  const at::Tensor values = torch::zeros({4}, at::Device(at::kCUDA, 1));
  test::fake_cuda::stick(1);
  const HostCopies copies{at::TensorList(values)};
  EXPECT_THAT(test::message_of<Timeout>(
                  [&] { copies.wait(Deadline(Millis{20}), "the copies for a test"); }),
              HasSubstr("device cuda:1 hangs"));
}

// As after run(): what is copied waits for a replica on another device.
TEST_F(SideQueues, AReplicaThatHangsIsNamedByWhoWaitsForCopiesOfAnotherDevice) {
  const DeviceQueue behind({at::kCUDA, 1}, "replica 1 (cuda:1)");
  const auto all = std::make_shared<const std::vector<DeviceQueue>>(std::vector{queue(), behind});
  queue().belongs_to(all);
  const at::Tensor values = torch::zeros({4}, gpu());
  test::fake_cuda::stick(1);
  DeviceMark mark;
  {
    const OnQueue on(behind);
    torch::zeros({4}, at::Device(at::kCUDA, 1));
  }
  behind.mark(mark);
  DeviceQueue::current(gpu(), "the caller").after(mark, "a test's");
  EXPECT_THAT(test::message_of<Timeout>(
                  [&] { on_host(values, Deadline(Millis{20}), "copies for a test"); }),
              AllOf(testing::StartsWith("replica 1 (cuda:1) hangs"),
                    HasSubstr("device cuda:0 waited 20 ms for copies for a test")));
}

TEST_F(SideQueues, CopiesForTheHostShareOneQueueADevice) {
  const auto stream = [](at::DeviceIndex device) {
    return DeviceQueue::beside({at::kCUDA, device}, "a test").stream();
  };
  EXPECT_EQ(stream(0), stream(0));
  EXPECT_NE(stream(0), stream(1));
}

// More queues than LibTorch has streams, all behind a device that hangs: the others answer.
TEST_F(SideQueues, ADeviceWhoseQueuesAllWaitForAnotherAnswers) {
  const DeviceQueue behind({at::kCUDA, 1}, "replica 1 (cuda:1)");
  DeviceQueue first = queue();
  const auto all = std::make_shared<const std::vector<DeviceQueue>>(std::vector{first, behind});
  first.belongs_to(all);
  test::fake_cuda::stick(1);
  DeviceMark mark, ours;
  {
    const OnQueue on(behind);
    torch::zeros({4}, at::Device(at::kCUDA, 1));
  }
  behind.mark(mark);
  for (int i = 0; i < 40; ++i) queue().after(mark, "a test's");
  first.after(mark, "a test's");
  first.mark(ours);
  EXPECT_THAT(test::message_of<Timeout>([&] { first.wait(ours, Deadline(Millis{20}), "a test"); }),
              testing::StartsWith("replica 1 (cuda:1) hangs"));
}

TEST_F(SideQueues, ValuesAreReadInTheirOrderWithoutAWaitOfTheHost) {
  test::in_all_orders(kSeeds, [] {
    const DeviceQueue queue({at::kCUDA, 0}, "replica 0 (cuda:0)");
    LateReads late(queue);
    const OnQueue on(queue);
    at::Tensor value = torch::zeros({}, at::Device(at::kCUDA, 0));
    std::vector<float> read;
    const auto before = test::fake_cuda::counts();
    for (int step = 0; step < 20; ++step) {
      value += 1;
      late.add({value},
               [&](const auto& copies) { read.push_back(copies[0].template item<float>()); });
      late.poll(Deadline(kLimit));
    }
    late.settle(Deadline(kLimit));
    EXPECT_EQ((test::fake_cuda::counts() - before).host_waits, 0U);
    ASSERT_EQ(read.size(), 20U);
    for (int step = 0; step < 20; ++step) EXPECT_EQ(read[static_cast<size_t>(step)], step + 1);
  });
}

TEST_F(SideQueues, ADeviceThatHangsEndsTheReadingOfItsValues) {
  LateReads late(queue());
  const at::Tensor value = torch::ones({}, gpu());
  test::fake_cuda::stick(0);
  late.add({value}, [](const auto&) { ADD_FAILURE() << "it has not come"; });
  late.poll(Deadline(Millis{20}));
  EXPECT_THAT(test::message_of<Timeout>([&] { late.settle(Deadline(Millis{20})); }),
              HasSubstr("replica 0 (cuda:0) hangs"));
}

}  // namespace
}  // namespace tutti
