// Replicas as threads: who is waited for, what of the caller they have, and what they leave.
#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <torch/torch.h>

#include <atomic>

#include "tutti/base/error.h"
#include "tutti/strategy/modules/replicated.h"

#include "tests/support/plain_training.h"

namespace tutti {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

Strategy of_threads(int replicas) {
  return Strategy({.kind = "mirrored", .replicas = replicas, .threads_per_replica = 1, .seed = 5});
}

TEST(Threads, RunRethrowsTheFirstErrorAndFreesTheOthers) {
  auto strategy = of_threads(3);
  Replicated<torch::nn::Linear> net(strategy, [] { return torch::nn::Linear(3, 1); });
  Optimizer optimizer(net, optim::sgd());
  const auto step = [&](ReplicaContext& replica) {
    optimizer.minimize(replica, net.local(replica)->weight.sum());
  };
  EXPECT_THAT(
      [&] {
        strategy.run([&](ReplicaContext& replica) {
          if (replica.rank() == 1) throw std::runtime_error("no such doodle");
          step(replica);
        });
      },
      ThrowsMessage<std::runtime_error>(HasSubstr("no such doodle")));
  EXPECT_THAT([&] { strategy.run(step); },
              ThrowsMessage<std::exception>(HasSubstr("no such doodle")));
}

// Replica 0 is the calling thread, and watches over the others from when it is done.
TEST(Threads, WhoHasNotComeIsNamed) {
  for (const int absent : {0, 1}) {
    Strategy strategy(
        {.kind = "mirrored", .replicas = 2, .threads_per_replica = 1, .time_limit = Millis(500)});
    Replicated<torch::nn::Linear> net(strategy, [] { return torch::nn::Linear(3, 1); });
    Optimizer optimizer(net, optim::sgd());
    std::atomic<bool> left{false};
    EXPECT_THAT(
        [&] {
          strategy.run([&](ReplicaContext& replica) {
            if (replica.rank() == absent) {
              left = true;
              left.notify_all();
              return;
            }
            left.wait(false);
            optimizer.minimize(replica, net.local(replica)->weight.sum());
          });
        },
        ThrowsMessage<Timeout>(HasSubstr(fmt::format("rank {}", absent))));
  }
}

// Of operations that a user calls on the group, who gives them no limit.
TEST(Threads, TheTimeLimitIsThatOfTheGroupsOperations) {
  Strategy strategy(
      {.kind = "mirrored", .replicas = 2, .threads_per_replica = 1, .time_limit = Millis(300)});
  EXPECT_THAT(
      [&] {
        strategy.run([&](ReplicaContext& replica) {
          Group alike = *replica.group().split(0);
          EXPECT_EQ(replica.group().time_limit(), Millis(300));
          EXPECT_EQ(alike.time_limit(), Millis(300));
          float one = 1;
          if (replica.rank() == 0)
            replica.group().all_reduce(span_of(std::span(&one, 1)), ReduceOp::sum).wait();
        });
      },
      ThrowsMessage<Timeout>(HasSubstr("300 ms")));
}

TEST(Threads, LeaveTheMainThreadAsItWas) {
  at::set_num_threads(2);
  cpu_set_t before, after;
  CPU_ZERO(&before);
  CPU_ZERO(&after);
  sched_getaffinity(0, sizeof before, &before);
  auto strategy = of_threads(2);
  const auto counts = strategy.run([](ReplicaContext&) { return at::get_num_threads(); });
  EXPECT_THAT(counts.values(), ::testing::Each(1));
  EXPECT_EQ(at::get_num_threads(), 2);
  sched_getaffinity(0, sizeof after, &after);
  EXPECT_TRUE(CPU_EQUAL(&before, &after));
}

TEST(Threads, TakeTheCallersThreadLocalState) {
  auto strategy = of_threads(2);
  at::NoGradGuard no_grad;
  const auto enabled = strategy.run([](ReplicaContext&) { return at::GradMode::is_enabled(); });
  EXPECT_THAT(enabled.values(), ::testing::Each(false));
}

TEST(Threads, DrawingFromTheDefaultGeneratorIsAnError) {
  auto strategy = of_threads(2);
  EXPECT_THAT(
      [&] {
        strategy.run([](ReplicaContext&) {
          return torch::rand({2}, at::detail::getDefaultCPUGenerator()).sum().item<float>();
        });
      },
      ThrowsMessage<UsageError>(AllOf(HasSubstr("default generator"), HasSubstr("multi_worker"))));
  const auto numbers = strategy.run(
      [](ReplicaContext& replica) { return torch::rand({1}, replica.generator()).item<float>(); });
  EXPECT_NE(numbers.local(0), numbers.local(1));
}

}  // namespace
}  // namespace tutti
