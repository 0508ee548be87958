// A batch that is copied on a stream of its own, beside the one that computes: with every wait, and
// without one each.
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tests/support/fake_cuda/fake_cuda_test.h"

namespace tutti::test {
namespace {

enum class Wait { none, before_use, record_stream, before_host_reads, before_host_writes };

// What the thread is about to do, as code under test would say it.
thread_local Wait about_to = Wait::none;

class Doing {
 public:
  explicit Doing(Wait what) { about_to = what; }
  ~Doing() { about_to = Wait::none; }
  Doing(const Doing&) = delete;
  Doing& operator=(const Doing&) = delete;
};

class Streams : public FakeCudaTest {
 protected:
  void leave_out(Wait wait) {
    fake_cuda::leave_out_blocks([wait] { return about_to == wait; });
    fake_cuda::leave_out_records([wait] { return about_to == wait; });
  }

  // The sum of three batches; right: 64 + 128 + 192. A ring of one pinned batch.
  double sum_of_batches(bool waits_for_ring = true, bool waits_for_result = true) {
    const c10::Device device(c10::DeviceType::CUDA, 0);
    const c10::impl::VirtualGuardImpl guard(device.type());
    const auto compute = guard.getStream(device);
    const auto side = guard.getNewStream(device);
    auto ring = torch::empty({64}, torch::TensorOptions().pinned_memory(true));
    c10::Event copied(device.type());
    auto total = torch::zeros({}, device);
    for (int batch = 1; batch <= 3; ++batch) {
      if (waits_for_ring && batch > 1) copied.synchronize();
      ring.fill_(batch);
      at::Tensor there;
      {
        const c10::StreamGuard use(side);
        there = ring.to(device, true);
        copied.record(side);
      }
      {
        const Doing wait(Wait::before_use);
        copied.block(compute);
      }
      total.add_(there.sum());
      const Doing record(Wait::record_stream);
      there.record_stream(compute);
    }
    auto host = torch::empty({}, torch::TensorOptions().pinned_memory(true));
    host.copy_(total, true);
    if (waits_for_result) guard.synchronizeStream(compute);
    return host.item<double>();
  }

  int wrong(Wait left_out, bool waits_for_ring = true, bool waits_for_result = true) {
    leave_out(left_out);
    int times = 0;
    for (int seed = 0; seed < 40; ++seed) {
      fake_cuda::set_order(fake_cuda::Order::random, seed);
      times += sum_of_batches(waits_for_ring, waits_for_result) != 384;
    }
    return times;
  }
};

TEST_F(Streams, CorrectCodeIsRightInEveryOrder) {
  in_all_orders(50, [&] { EXPECT_EQ(sum_of_batches(), 384); });
}

TEST_F(Streams, EachMissingWaitIsFoundBySomeSeed) {
  EXPECT_EQ(wrong(Wait::none), 0);
  EXPECT_GT(wrong(Wait::before_use), 3);
  EXPECT_GT(wrong(Wait::record_stream), 3);
  EXPECT_GT(wrong(Wait::none, /*waits_for_ring=*/false), 3);
  EXPECT_GT(wrong(Wait::none, true, /*waits_for_result=*/false), 3);
}

TEST_F(Streams, PinnedMemoryMayBeFreedWhileItsCopyIsQueued) {
  const c10::Device device(c10::DeviceType::CUDA, 0);
  auto there = torch::ones({1000}).pin_memory().to(device, true);
  auto others = torch::full({1000}, 5.0).pin_memory();
  EXPECT_EQ(there.sum().item<double>(), 1000);
  auto back = torch::empty({1000}, torch::TensorOptions().pinned_memory(true));
  back.copy_(there, true);
  EXPECT_TRUE(back.isnan().all().item<bool>()) << "nothing has run yet";
  back = at::Tensor();
  fake_cuda::run_all();
}

TEST_F(Streams, MemoryOfTheHostThatIsNotPinnedIsReadByTheCall) {
  const c10::Device device(c10::DeviceType::CUDA, 0);
  auto host = torch::ones({8});
  auto there = torch::empty({8}, device);
  const auto before = fake_cuda::counts();
  there.copy_(host, true);
  EXPECT_EQ((fake_cuda::counts() - before).host_waits, 0U);
  host.fill_(7);
  EXPECT_EQ(there.sum().item<double>(), 8);
}

TEST_F(Streams, AnEventBecomesReadyWhilePolled) {
  const c10::Device device(c10::DeviceType::CUDA, 0);
  const c10::impl::VirtualGuardImpl guard(device.type());
  auto x = torch::ones({8}, device);
  for (int i = 0; i < 10; ++i) x.add_(1);
  c10::Event done(device.type());
  done.record(guard.getStream(device));
  EXPECT_FALSE(done.query());
  int polls = 0;
  while (!done.query()) ASSERT_LT(++polls, 100);
  const auto before = fake_cuda::counts();
  done.synchronize();
  EXPECT_EQ((fake_cuda::counts() - before).host_waits, 1U);
}

}  // namespace
}  // namespace tutti::test
