// Replicas on devices in several processes, over the fake NCCL: sums in the reduction shape have
// the bits of one device in turn, sums in any order are the same on all ranks; every wait between
// queues is needed; and how a job ends.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <chrono>
#include <cmath>
#include <future>
#include <string>
#include <vector>

#include "tests/support/devices_of_processes.h"
#include "tests/support/message_of.h"

namespace tutti::test {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;

// autograd starts its threads by the devices of its first pass: for all tests of this binary.
class FourDevices : public ::testing::Environment {
 public:
  void SetUp() override {
    if (!fake_cuda::available()) return;
    fake_cuda::set_devices(4);
    torch::ones({1}, at::TensorOptions(at::kCUDA).requires_grad(true)).sum().backward();
    fake_cuda::run_all();
  }
};
const auto* const four_devices =
    ::testing::AddGlobalTestEnvironment(std::make_unique<FourDevices>().release());

const optim::Recipe kAdam = optim::adam({.learning_rate = 0.01});

TEST_F(DevicesOfProcesses, SumsInTheShapeHaveTheBitsOfOneDeviceInTurn) {
  const std::vector<optim::Recipe> recipes{
      kAdam,
      {kAdam.rule(), {.global_norm = 0.1}},
      {optim::sgd({.learning_rate = 0.1, .momentum = 0.9}), {.value = 0.01}}};
  for (const auto& [processes, local] : {std::pair{2, 1}, {3, 1}, {2, 2}})
    for (const optim::Recipe& recipe : recipes) {
      const ProcessesJob job{.processes = processes,
                             .local = local,
                             .sums = {.order = Order::fixed},
                             .recipe = recipe,
                             .unused = true};
      const at::Tensor expected = oracle(job);
      ASSERT_TRUE(std::isfinite(expected.sum().item<double>()));
      in_all_orders(4, [&] {
        EXPECT_TRUE(all_equal(weights_of(job), expected)) << processes << " x " << local;
      });
    }
}

TEST_F(DevicesOfProcesses, SumsInAnyOrderAreTheSameOnAllRanks) {
  for (const auto& [processes, local] : {std::pair{2, 1}, {3, 1}, {2, 2}})
    for (const optim::Recipe& recipe : {kAdam, {kAdam.rule(), {.norm = 0.05}}}) {
      const ProcessesJob job{
          .processes = processes, .local = local, .recipe = recipe, .unused = true};
      const at::Tensor expected = oracle(job);
      in_all_orders(4, [&] {
        const auto weights = weights_of(job);
        EXPECT_TRUE(all_equal(weights, weights[0])) << processes << " x " << local;
        // Two numbers have one sum.
        if (job.replicas() == 2) {
          EXPECT_TRUE(torch::equal(weights[0], expected));
        }
        EXPECT_LT((weights[0] - expected).abs().max().item<double>(), 1e-4);
      });
    }
}

TEST_F(DevicesOfProcesses, NoHostWaitsForADevice) {
  for (const Order order : {Order::any, Order::fixed}) {
    auto all = start({.sums = {.order = order}});
    const auto x = device_data(2);
    run_replicas(all, [&](Process& process, int local) { process_step(process, local, x[0]); });
    fake_cuda::run_all();
    fake_cuda::set_order(fake_cuda::Order::lazy);
    const auto before = fake_cuda::counts();
    run_replicas(all, [&](Process& process, int local) {
      for (int step = 0; step < 20; ++step) process_step(process, local, x[1]);
    });
    const auto queued = fake_cuda::counts() - before;
    EXPECT_EQ(queued.host_waits, 0);
    EXPECT_EQ(queued.synchronous, 0);
    fake_cuda::run_all();
  }
}

// A hook on the first layer, whose gradient comes last, asks; the other process begins after that.
TEST_F(DevicesOfProcesses, BucketsGoWhileBackwardGoesOn) {
  auto all = start(ProcessesJob{});
  const auto x = device_data(3);
  std::promise<int64_t> launched;
  auto seen = launched.get_future();
  const auto all_reduces = [] { return std::ranges::count(fake_calls(), "ncclAllReduce"); };
  run_replicas(all, [&](Process& process, int local) {
    for (int step = 0; step < 2; ++step) process_step(process, local, x[step]);
    process.world.groups[0].barrier();
    const auto before = all_reduces();
    if (process.world.first_rank == 0)
      process.updater->parameters(local)[0].register_hook(
          [&, before](const at::Tensor&) { launched.set_value(all_reduces() - before); });
    else
      EXPECT_EQ(seen.wait_for(std::chrono::seconds(20)), std::future_status::ready);
    process_step(process, local, x[2]);
    weights_here(process, local);
  });
  EXPECT_GE(seen.get(), 1);
}

TEST_F(DevicesOfProcesses, EveryWaitIsNeeded) {
  for (const auto& [wait, local, order] : {std::tuple{"what the caller has queued", 1, Order::any},
                                           {"the operation of NCCL", 1, Order::any},
                                           {"what the caller has queued", 1, Order::fixed},
                                           {"the operation of NCCL", 1, Order::fixed},
                                           {"gradients of the other replicas", 2, Order::any},
                                           {"updates of the other replicas", 2, Order::fixed}}) {
    const ProcessesJob job{.local = local, .sums = {.order = order}};
    fake_cuda::set_order(fake_cuda::Order::eager);
    const at::Tensor expected = weights_of(job)[0];
    const int missed =
        seeds_that_miss(wait, 20, [&] { return all_equal(weights_of(job), expected); });
    EXPECT_GT(missed, 0) << "nobody misses the wait for " << wait << " with " << local;
    RecordProperty(fmt::format("{} {}", wait, local), missed);
  }
}

TEST_F(DevicesOfProcesses, AStepThatOneLeavesOutIsLeftOutByAll) {
  for (const Order order : {Order::any, Order::fixed}) {
    const ProcessesJob job{.sums = {.order = order, .first_bucket_bytes = 2 << 10}};
    const auto train = [&](bool with_bad_steps) {
      auto all = start(job);
      std::vector<at::Tensor> weights(2);
      const auto x = device_data(5);
      run_replicas(all, [&](Process& process, int local) {
        const int rank = process.world.first_rank;
        process_step(process, local, x[0]);
        // Known on the host; then on the device alone, from when on all are left out.
        if (with_bad_steps)
          process_step(process, local, x[1], false, {rank == 1 ? kLeavesOut : kComputes});
        process_step(process, local, x[2]);
        if (with_bad_steps) {
          const auto bad = torch::tensor(rank == 1).to(process.world.queues[0].device());
          process_step(process, local, x[3], false, {.bad = bad});
          process_step(process, local, x[4]);
          process.world.queues[0].drain(Deadline(job.limit), "the steps");
          EXPECT_EQ(process.updater->parts().on_device->forget_left_out(), 2);
        }
        EXPECT_EQ(process.updater->version(), 2);
        process_step(process, local, x[4]);
        weights[static_cast<size_t>(rank)] = weights_here(process, local);
      });
      return weights;
    };
    fake_cuda::set_order(fake_cuda::Order::eager);
    const at::Tensor expected = train(false)[0];
    in_all_orders(4, [&] { EXPECT_TRUE(all_equal(train(true), expected)); });
  }
}

TEST_F(DevicesOfProcesses, ALostProcessEndsWhatIsOnTheDevices) {
  const ProcessesJob job{.processes = 3};
  auto all = start(job);
  const auto x = device_data(3);
  std::vector<std::string> words(3);
  run_replicas(all, [&](Process& process, int local) {
    const int rank = process.world.first_rank;
    process_step(process, local, x[0]);
    if (rank == 1) return process.world.groups[0].abort("the disk is full");
    words[static_cast<size_t>(rank)] =
        message_of<PeerLost>([&] { process_step(process, local, x[1]); });
    EXPECT_THROW(process.updater->begin(local, Overlap::on), Error) << "gradients are there";
    EXPECT_THROW(process.world.device_groups[0].barrier(), PeerLost);
  });
  for (int rank : {0, 2})
    EXPECT_THAT(words[static_cast<size_t>(rank)], HasSubstr("the disk is full"));
  EXPECT_THAT(fake_calls(), Contains("ncclCommAbort"));
  all[1]->world.device_groups[0].abort("its process is gone");
  fake_cuda::run_all();
  all.clear();
  // Those that are left make a world of their own, with a communicator of its own.
  const auto weights = weights_of(ProcessesJob{});
  EXPECT_TRUE(all_equal(weights, oracle(ProcessesJob{})));
}

// The device of replica 1 hangs; replica 0 waits for its own queue, where NCCL waits.
TEST_F(DevicesOfProcesses, WhoWaitsForAnotherProcesssDeviceNamesIt) {
  const ProcessesJob job{.limit = Millis(2000)};
  auto all = start(job);
  const auto x = device_data(5);
  std::vector<std::string> words(2);
  fake_cuda::set_order(fake_cuda::Order::eager);
  run_replicas(all, [&](Process& process, int local) {
    process_step(process, local, x[0]);
    process.world.groups[0].barrier();
    if (process.world.first_rank == 1) {
      fake_cuda::run_all();
      fake_cuda::stick(1);
    }
    process.world.groups[0].barrier();
    for (int step = 1; step < 5; ++step) process_step(process, local, x[step]);
    words[static_cast<size_t>(process.world.first_rank)] = message_of<Timeout>(
        [&] { process.world.queues[0].drain(Deadline(Millis(300)), "the steps"); });
    process.world.groups[0].barrier();
  });
  EXPECT_THAT(words[0], AllOf(HasSubstr("replica 0 (cuda:0) has not finished the steps"),
                              HasSubstr("the device of replica 1 has done 1 backward passes")));
  EXPECT_THAT(words[1], HasSubstr("replica 1 (cuda:1) hangs"));
  fake_cuda::unstick(1);
}

TEST_F(DevicesOfProcesses, WhoCannotUseNcclSaysWhy) {
  const auto gpu = [](const char* address, const char* version = "2.28.9", int cuda = 13000) {
    return detail::RankOnGpu{.on_gpu = true,
                             .has_nccl = true,
                             .nccl = version,
                             .cuda = cuda,
                             .machine = "m",
                             .gpu = address,
                             .process = "host h, pid 7"};
  };
  const auto why = [](std::vector<detail::RankOnGpu> ranks, int local = 1) {
    return detail::objection_to_nccl(ranks, local);
  };
  EXPECT_EQ(why({gpu("a"), gpu("b"), gpu("c")}), "");
  auto cpu = gpu("a"), without = gpu("b"), elsewhere = gpu("a");
  cpu.on_gpu = without.has_nccl = false;
  elsewhere.machine = "n";
  EXPECT_EQ(why({gpu("a"), elsewhere}), "");
  EXPECT_THAT(why({gpu("b"), cpu}), HasSubstr("replica 1 computes on the CPU"));
  EXPECT_THAT(why({gpu("a"), without}), HasSubstr("built without NCCL in host h, pid 7"));
  EXPECT_THAT(why({gpu("a"), gpu("b"), gpu("a")}),
              AllOf(HasSubstr("replicas 0 and 2 share GPU a"), HasSubstr("NCCL 2.28.9 refuses")));
  EXPECT_EQ(why({gpu("a", "2.32.3"), gpu("a", "2.32.3")}), "");
  EXPECT_THAT(
      why({gpu("a", "2.32.3"), gpu("a", "2.32.3"), gpu("b", "2.32.3"), gpu("c", "2.32.3")}, 2),
      HasSubstr("replicas 0 and 1 share GPU a"));
  EXPECT_THAT(message_of<Mismatch>([&] { why({gpu("a"), gpu("b", "2.27.0")}); }),
              AllOf(HasSubstr("replicas 0 and 1"), HasSubstr("NCCL 2.27.0"), HasSubstr("same")));
  EXPECT_THAT(message_of<Mismatch>([&] { why({gpu("a"), gpu("b", "2.28.9", 12080)}); }),
              HasSubstr("CUDA 12.8"));
  auto otherwise = gpu("b");
  otherwise.sums = "--engine hier --sum-order any";
  EXPECT_THAT(message_of<Mismatch>([&] { why({gpu("a"), otherwise}); }),
              HasSubstr("with --engine hier --sum-order any; start all alike"));
}

}  // namespace
}  // namespace tutti::test
