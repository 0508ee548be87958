// Replicas on devices in several processes go on in another world: with those that a failure has
// left, in groups made anew, with the bits of a job that was never larger.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <vector>

#include "tests/support/devices_of_processes.h"
#include "tests/support/message_of.h"

namespace tutti::test {
namespace {

using ::testing::HasSubstr;

class OtherWorlds : public DevicesOfProcesses {
 protected:
  using Jobs = std::vector<std::unique_ptr<Process>>;

  /// Steps [first, last) of `x` on every replica; the weights by rank.
  static std::vector<at::Tensor> train(Jobs& all, const at::Tensor& x, int first, int last) {
    std::vector<at::Tensor> weights(all.size() * static_cast<size_t>(all[0]->world.local));
    run_replicas(all, [&](Process& process, int local) {
      for (int step = first; step < last; ++step) process_step(process, local, x[step]);
      weights[static_cast<size_t>(process.world.first_rank + local)] = weights_here(process, local);
    });
    return weights;
  }

  /// The same processes in a world of their own, over hosts' groups and NCCL's that are new.
  static void go_on(Jobs& all, const ProcessesJob& job) {
    const auto hosts = hosts_of(job);
    run_threads(job.processes, [&](int process) {
      Process& own = *all[static_cast<size_t>(process)];
      own.world = world_of(job, process, hosts, own.world.queues);
      own.updater->rebind(own.world, own.parameters);
    });
    fake_cuda::run_all();
  }

  /// Rank 1 leaves in the middle of a step, which the others learn where hosts meet.
  static void lose_rank_1(Jobs& all, const at::Tensor& x) {
    run_replicas(all, [&](Process& process, int local) {
      if (process.world.first_rank == 1) return process.world.groups[0].abort("it was killed");
      EXPECT_THAT(message_of<PeerLost>([&] { process_step(process, local, x); }),
                  HasSubstr("it was killed"));
      for (const at::Tensor& parameter : process.updater->parameters(local))
        parameter.mutable_grad().reset();
    });
    all[1]->world.device_groups[0].abort("its process is gone");
    all.erase(all.begin() + 1);
  }

  static UpdaterState copy_of(UpdaterState state) {
    for (auto& [name, tensor] : state.tensors) tensor = tensor.cpu().clone();
    return state;
  }
  static NamedTensors copy_of(const NamedTensors& parameters) {
    NamedTensors copies;
    for (const auto& [name, tensor] : parameters)
      copies.emplace_back(name, tensor.detach().cpu().clone());
    return copies;
  }

  /// A job that was never larger, from that state.
  static std::vector<at::Tensor> trained_from(const UpdaterState& state, const NamedTensors& values,
                                              const ProcessesJob& job, const at::Tensor& x,
                                              int first) {
    auto all = start(job);
    for (auto& process : all) process->updater->restore(state, values);
    fake_cuda::run_all();
    return train(all, x, first, static_cast<int>(x.size(0)));
  }
};

TEST_F(OtherWorlds, TwoOfThreeGoOnWithTheBitsOfTwo) {
  for (const Order order : {Order::any, Order::fixed})
    for (const int left : {2, 1})
      in_all_orders(2, [&] {
        const ProcessesJob three{.processes = 3, .sums = {.order = order}};
        const ProcessesJob fewer{.processes = left, .sums = {.order = order}};
        const auto x = device_data(5);
        auto all = start(three);
        train(all, x, 0, 2);
        const UpdaterState state = copy_of(all[0]->updater->state());
        const NamedTensors values = copy_of(all[0]->parameters[0]);
        lose_rank_1(all, x[2]);
        if (left == 1) all.pop_back();
        go_on(all, fewer);
        EXPECT_EQ(all[0]->updater->version(), 2);
        const auto weights = train(all, x, 2, 5);
        EXPECT_TRUE(all_equal(weights, trained_from(state, values, fewer, x, 2)[0])) << left;
      });
}

TEST_F(OtherWorlds, HostsGoOnWithThoseThatAreLeft) {
  const ProcessesJob four{.processes = 4, .hosts = 2}, three{.processes = 3, .hosts = 3};
  const auto x = device_data(4);
  auto all = start(four);
  train(all, x, 0, 2);
  const UpdaterState state = copy_of(all[0]->updater->state());
  const NamedTensors values = copy_of(all[0]->parameters[0]);
  lose_rank_1(all, x[2]);
  go_on(all, three);
  EXPECT_TRUE(all_equal(train(all, x, 2, 4), trained_from(state, values, three, x, 2)[0]));
}

TEST_F(OtherWorlds, WhatAFailureCutOffIsNotGoneOnWith) {
  const ProcessesJob three{.processes = 3}, two{};
  const auto x = device_data(5);
  auto all = start(three);
  train(all, x, 0, 1);
  const UpdaterState state = copy_of(all[0]->updater->state());
  const NamedTensors values = copy_of(all[0]->parameters[0]);
  // Its device stands still, so that no sum of the second step is ever there.
  fake_cuda::stick(1);
  run_replicas(all, [&](Process& process, int local) { process_step(process, local, x[1]); });
  EXPECT_EQ(all[0]->updater->version(), 2);
  lose_rank_1(all, x[2]);
  fake_cuda::unstick(1);
  for (const auto& process : all)
    EXPECT_THAT(message_of<Error>([&] { process->updater->require_whole(); }),
                HasSubstr("go on from the last checkpoint"));
  go_on(all, two);
  for (const auto& process : all) {
    EXPECT_THROW(process->updater->begin(0, Overlap::on), Error);
    EXPECT_THROW(process->updater->state(), Error);
  }
  for (auto& process : all) process->updater->restore(state, values);
  fake_cuda::run_all();
  EXPECT_TRUE(all_equal(train(all, x, 1, 5), trained_from(state, values, two, x, 1)[0]));
}

TEST_F(OtherWorlds, OneThatIsBehindKeepsAllFromGoingOn) {
  const ProcessesJob job{};
  const auto x = device_data(2);
  auto all = start(job);
  train(all, x, 0, 1);
  UpdaterState state = copy_of(all[1]->updater->state());
  state.version = 7;
  all[1]->updater->restore(state, copy_of(all[1]->parameters[0]));
  go_on(all, job);
  for (const auto& process : all) EXPECT_THROW(process->updater->begin(0, Overlap::on), Error);
}

TEST_F(OtherWorlds, AChangeOfMembersWithoutAFailureKeepsWhatWasQueued) {
  const ProcessesJob job{.local = 2};
  const auto x = device_data(4);
  fake_cuda::set_order(fake_cuda::Order::lazy);
  auto all = start(job);
  run_replicas(all, [&](Process& process, int local) {
    for (int step = 0; step < 2; ++step) process_step(process, local, x[step]);
  });
  go_on(all, job);
  EXPECT_EQ(all[1]->updater->version(), 2);
  const auto weights = train(all, x, 2, 4);
  ProcessesJob whole = job;
  whole.steps = 4;
  EXPECT_TRUE(all_equal(weights, weights_of(whole)[0]));
}

TEST_F(OtherWorlds, WithoutGroupsForDevicesThereIsNoneToGoOnIn) {
  auto all = start(ProcessesJob{});
  World world = all[0]->world;
  world.device_groups.clear();
  world.no_device_groups = "replica 1 computes on the CPU";
  EXPECT_THAT(message_of<UsageError>([&] { all[0]->updater->rebind(world, all[0]->parameters); }),
              HasSubstr("replica 1 computes on the CPU"));
}

}  // namespace
}  // namespace tutti::test
