// Replicas on devices of several hosts under engine hier: NCCL inside each, another engine between.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <string>
#include <vector>

#include "tutti/sync/on_devices/detail/device_updater.h"

#include "tests/support/devices_of_processes.h"
#include "tests/support/message_of.h"

namespace tutti::test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class DevicesOfHosts : public DevicesOfProcesses {};

// Of two hosts with one replica each two numbers have one sum: the bits of one device in turn.
TEST_F(DevicesOfHosts, SumsAreTheSameOnAllRanks) {
  for (const auto& [processes, local, hosts] :
       {std::tuple{2, 1, 2}, {4, 1, 2}, {3, 1, 3}, {2, 2, 2}})
    for (const double norm : {0.0, 0.05}) {
      const ProcessesJob job{.processes = processes,
                             .local = local,
                             .recipe = {optim::adam({.learning_rate = 0.01}), {.norm = norm}},
                             .unused = true,
                             .hosts = hosts};
      const at::Tensor expected = oracle(job);
      in_all_orders(2, [&] {
        const auto weights = weights_of(job);
        EXPECT_TRUE(all_equal(weights, weights[0])) << processes << " x " << local;
        if (job.replicas() == 2) {
          EXPECT_TRUE(torch::equal(weights[0], expected));
        }
        EXPECT_LT((weights[0] - expected).abs().max().item<double>(), 1e-4);
      });
    }
}

TEST_F(DevicesOfHosts, SumsInTheShapeGoByNcclAlone) {
  const ProcessesJob job{.processes = 4, .sums = {.order = Order::fixed}, .hosts = 2};
  const at::Tensor expected = oracle(job);
  EXPECT_EQ(start(job)[0]->world.device_groups[0].engine().name(), "nccl");
  EXPECT_TRUE(all_equal(weights_of(job), expected));
}

TEST_F(DevicesOfHosts, EveryWaitOfSumsIsNeeded) {
  const ProcessesJob job{.processes = 4, .hosts = 2};
  fake_cuda::set_order(fake_cuda::Order::eager);
  const at::Tensor expected = weights_of(job)[0];
  for (const char* const wait : {"what the caller has queued", "the operation of NCCL"})
    EXPECT_GT(seeds_that_miss(wait, 20, [&] { return all_equal(weights_of(job), expected); }), 0)
        << "nobody misses the wait for " << wait;
}

TEST_F(DevicesOfHosts, AStepThatOneLeavesOutIsLeftOutByAllHosts) {
  const ProcessesJob job{.processes = 4, .hosts = 2};
  auto all = start(job);
  const auto x = device_data(3);
  run_replicas(all, [&](Process& process, int local) {
    const int rank = process.world.first_rank;
    process_step(process, local, x[0]);
    const at::Tensor before = weights_here(process, local);
    const auto bad = torch::tensor(rank == 3).to(process.world.queues[0].device());
    process_step(process, local, x[1], false, {.bad = bad});
    process_step(process, local, x[2]);
    EXPECT_TRUE(torch::equal(weights_here(process, local), before));
    EXPECT_EQ(process.updater->parts().on_device->forget_left_out(), 2);
  });
}

// Rank 3 is gone where hosts meet, and after that, where the hosts' sums are waited for.
TEST_F(DevicesOfHosts, ALostProcessIsOneErrorThatNamesIt) {
  for (const bool between_meetings : {false, true}) {
    const ProcessesJob job{.processes = 4, .hosts = 2};
    auto all = start(job);
    const auto x = device_data(2);
    std::vector<std::string> words(4);
    run_replicas(all, [&](Process& process, int local) {
      const int rank = process.world.first_rank;
      process_step(process, local, x[0]);
      (void)weights_here(process, local);
      Updater& updater = *process.updater;
      if (rank == 3 && !between_meetings) return process.world.groups[0].abort("the disk is full");
      if (rank == 3) {
        // It meets the others, and does not add.
        updater.begin(local, Overlap::off);
        dynamic_cast<detail::DeviceUpdater&>(updater).hand_in(local, {}, {});
        return process.world.groups[0].abort("the disk is full");
      }
      words[static_cast<size_t>(rank)] =
          message_of<PeerLost>([&] { process_step(process, local, x[1]); });
      EXPECT_THROW(process.world.device_groups[0].barrier(), PeerLost);
    });
    for (int rank : {0, 1, 2})
      EXPECT_THAT(words[static_cast<size_t>(rank)], HasSubstr("the disk is full")) << rank;
    all[3]->world.device_groups[0].abort("its process is gone");
    fake_cuda::run_all();
  }
}

TEST_F(DevicesOfHosts, WhatCannotBeSaysWhatToDo) {
  const auto on = [](std::vector<std::string> machines) {
    std::vector<detail::RankOnGpu> ranks;
    for (auto& machine : machines)
      ranks.push_back({.on_gpu = true, .has_nccl = true, .machine = std::move(machine)});
    return ranks;
  };
  EXPECT_EQ(detail::owners_by_host(on({"a", "a", "b", "b"}), 1, 0),
            (std::vector<std::vector<int>>{{0, 1}, {2, 3}}));
  EXPECT_EQ(detail::owners_by_host(on({"a", "a", "b", "b"}), 2, 1),
            (std::vector<std::vector<int>>{{1}, {3}}));
  EXPECT_EQ(detail::owners_by_host(on({"a", "b", "a", "b"}), 1, 0),
            (std::vector<std::vector<int>>{{0, 2}, {1, 3}}));
  EXPECT_THAT(message_of<UsageError>([&] { detail::owners_by_host(on({"a", "a"}), 1, 0); }),
              AllOf(HasSubstr("on one host"), HasSubstr("leave --engine out")));
  EXPECT_THAT(message_of<UsageError>([&] { detail::owners_by_host(on({"a", "a", "b"}), 1, 0); }),
              AllOf(HasSubstr("2+1 processes"), HasSubstr("leave --engine out")));
}

}  // namespace
}  // namespace tutti::test
