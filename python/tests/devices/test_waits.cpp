// Who waits for what: the caller's queue, whatever order its waits come in, never the host for a
// device; memory is kept as long as it is used; and each of that is needed.
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "python/tests/devices/ranks.h"

namespace tutti::python::test {
namespace {

namespace fake_cuda = tutti::test::fake_cuda;

constexpr int kWaitSeeds = 20;
constexpr int64_t kCount = 300;

class Waits : public BackendOnDevices {
 protected:
  /// Whether `body` returned true on both ranks.
  static bool on_both(const std::function<bool(Rank&)>& body) {
    std::atomic<int> right{0};
    run_all_well({}, [&](Rank& self) { right += body(self) ? 1 : 0; });
    return right == 2;
  }
  static void expect_in_all_orders(const std::function<bool(Rank&)>& body) {
    tutti::test::in_all_orders(kWaitSeeds, [&] { EXPECT_TRUE(on_both(body)); });
  }
};

// On the host: the sum of both ranks' data, and of `more` of each.
at::Tensor sum_on_host(float more = 0) {
  const auto of = [&](int rank) { return numbers_of(rank + 1, {kCount}).to(at::kFloat) + more; };
  return of(0) + of(1);
}

// Half a sum, five times, each of what the last one gave.
bool sums_go_on(Rank& self) {
  Tensors tensors{self.data({kCount})};
  for (int step = 0; step < 5; ++step) {
    wait_for(self.backend.allreduce(tensors, {}));
    tensors[0].mul_(0.5);
  }
  return tensors[0].cpu().equal(sum_on_host().mul_(0.5));
}

TEST_F(Waits, WorkQueuedAroundACallSeesWhatItShould) { expect_in_all_orders(sums_go_on); }

TEST_F(Waits, EveryWaitIsNeeded) {
  for (const char* const wait : {DeviceWay::kWaitForCaller, DeviceWay::kWaitForResults}) {
    const int wrong = tutti::test::seeds_that_miss(wait, kWaitSeeds, [] { return on_both(sums_go_on); });
    EXPECT_GT(wrong, 0) << "nobody misses the wait of " << wait;
    RecordProperty(wait, wrong);
  }
}

// Three calls from three queues, waited for by a fourth, the last one first.
TEST_F(Waits, MayComeInAnotherOrderFromAnotherQueue) {
  expect_in_all_orders([](Rank& self) {
    std::vector<Tensors> tensors;
    std::vector<TuttiBackend::WorkPointer> works;
    for (int call = 0; call < 3; ++call) {
      const OnQueue on(DeviceQueue(self.device, "a test"));
      tensors.push_back({self.data({kCount}).add_(call)});
      works.push_back(self.backend.allreduce(tensors.back(), {}));
    }
    bool right = true;
    for (int call = 2; call >= 0; --call) {
      wait_for(works[call]);
      right &= tensors[call][0].add(0).cpu().equal(sum_on_host(call));
    }
    return right;
  });
}

TEST_F(Waits, OfFuturesSeeTheResults) {
  expect_in_all_orders([](Rank& self) {
    Tensors tensors{self.data({kCount})};
    const auto future = self.backend.allreduce(tensors, {})->getFuture();
    const auto halves = future->then(
        [](c10::ivalue::Future& done) { return done.value().toTensorVector()[0].mul(0.5); },
        c10::TensorType::get());
    future->wait();
    const at::Tensor twice = tensors[0].mul(2);
    halves->wait();
    return twice.cpu().equal(sum_on_host() * 2) &&
           halves->value().toTensor().add(0).cpu().equal(sum_on_host() * 0.5);
  });
}

// Then nobody needs a wait.
TEST_F(Waits, WhatIsCompletedIsThere) {
  expect_in_all_orders([](Rank& self) {
    Tensors tensors{self.data({kCount})};
    const auto work = self.backend.allreduce(tensors, {});
    while (!work->isCompleted()) std::this_thread::yield();
    const OnQueue on(DeviceQueue(self.device, "a test"));
    return tensors[0].cpu().equal(sum_on_host());
  });
}

// The inputs are dropped, and their memory is asked for again, while their copies are queued.
bool dropped_inputs_arrive(Rank& self) {
  at::Tensor output = self.room({2 * kCount});
  TuttiBackend::WorkPointer work;
  {
    at::Tensor input = self.data({kCount});
    work = self.backend._allgather_base(output, input, {});
  }
  const at::Tensor other = self.room({kCount}).fill_(-1);
  wait_for(work);
  at::Tensor sum = output.narrow(0, 0, kCount) + output.narrow(0, kCount, kCount);
  return sum.cpu().equal(sum_on_host()) && other.cpu().equal(at::full({kCount}, -1.0F));
}

TEST_F(Waits, InputsMayBeDroppedAtOnce) { expect_in_all_orders(dropped_inputs_arrive); }

// Nobody waits for a result, so its memory serves again while the result is on its way there.
bool memory_of_dropped_results_is_kept(Rank& self) {
  Tensors tensors{self.data({kCount})};
  self.backend.allreduce(tensors, {});
  while (tensors[0].storage().use_count() > 1) std::this_thread::yield();  // until the call is over
  tensors.clear();
  at::empty({1}, at::TensorOptions(self.device)).fill_(0).item();  // to the release
  const at::Tensor other = self.room({kCount}).fill_(-1);
  const at::Tensor before = other.cpu();
  fake_cuda::run_all();
  return other.cpu().equal(before);
}

TEST_F(Waits, ResultsMayBeDroppedWithoutOne) {
  expect_in_all_orders(memory_of_dropped_results_is_kept);
}

TEST_F(Waits, ResultsNeedTheirMemoryKept) {
  fake_cuda::leave_out_records([] { return true; });
  int wrong = 0;
  tutti::test::in_all_orders(kWaitSeeds,
                             [&] { wrong += on_both(memory_of_dropped_results_is_kept) ? 0 : 1; });
  EXPECT_GT(wrong, 0);
}

TEST_F(Waits, AreNeverOfTheHostForADevice) {
  tutti::test::in_all_orders(4, [] {
    const auto before = fake_cuda::counts();
    run_all_well({}, [](Rank& self) {
      Tensors tensors{self.data({kCount})}, more{self.data({kCount})};
      for (int step = 0; step < 20; ++step) {
        const auto work = self.backend.allreduce(more, {});
        wait_for(self.backend.allreduce(tensors, {}));
        tensors[0].mul_(0.5);
        wait_for(work);
      }
    });
    const auto queued = fake_cuda::counts() - before;
    EXPECT_EQ(queued.host_waits, 0U);
    EXPECT_EQ(queued.synchronous, 0U)
        << ::testing::PrintToString(fake_cuda::synchronous_operators());
  });
}

}  // namespace
}  // namespace tutti::python::test
