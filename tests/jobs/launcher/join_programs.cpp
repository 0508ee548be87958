// How the workers of the launcher's tests join, and die of it.
#include <unistd.h>

#include <csignal>
#include <string>
#include <thread>
#include <vector>

#include "tutti/base/error.h"
#include "tutti/cluster/join/detail/lifeline.h"
#include "tutti/cluster/join/join.h"

#include "tests/support/run_ranks.h"

namespace tutti::test {
namespace {

using namespace std::chrono_literals;

RANK_PROGRAM(join_and_add) {
  Group world = join();
  if (world.rank() != rank.rank || world.size() != rank.size) throw Error("wrong place");
  std::vector<int64_t> values = {1, world.rank()};
  world.all_reduce(span_of(std::span(values)), ReduceOp::sum).wait();
  if (values[0] != rank.size || values[1] != rank.size * (rank.size - 1) / 2) throw Error("sum");
  rank.mark("same group " + std::to_string(&join().engine() == &world.engine()));
}

/// arguments: replicas a worker, for each worker.
RANK_PROGRAM(join_in_threads) {
  const int count = std::stoi(rank.arguments.at(static_cast<size_t>(rank.rank)));
  for (int round = 0; round < 2; ++round) {
    std::vector<Group> members = join_replicas(count);
    std::vector<std::thread> threads;
    std::vector<int64_t> sums(members.size());
    for (size_t i = 0; i < members.size(); ++i) {
      threads.emplace_back([&, i] {
        sums[i] = members[i].rank() + 100 * members[i].size();
        members[i].all_reduce_now(span_of(std::span(&sums[i], 1)), ReduceOp::sum);
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (const int64_t sum : sums) rank.mark("sum " + std::to_string(sum));
  }
}

RANK_PROGRAM(lose_replicas) {
  try {
    std::vector<Group> members = join_replicas(2);
    if (rank.rank == 1) std::raise(SIGKILL);
    members[0].barrier(20'000ms);
  } catch (const PeerLost& error) {
    report_failure(error);
    throw;
  }
}

/// What join() and join_replicas() do, as far as somebody needs it to die half-way.
void say_joined(bool wait) {
  auto& lifeline = detail::Lifeline::of(worker_environment().value());
  lifeline.send({.kind = detail::Notice::Kind::joined}, {}, Deadline(20'000ms));
  if (wait) lifeline.wait_until_all_joined(Deadline(20'000ms));
}

void say_replicas(Group world) {
  int64_t mine = 2;
  std::vector<int64_t> all(static_cast<size_t>(world.size()));
  world.all_gather(span_of(std::span(&mine, 1)), span_of(std::span(all))).wait();
}

RANK_PROGRAM(die_waiting_for_others) {
  if (rank.rank == 0) {
    while (true) pause();
  }
  if (rank.rank == 1) {
    say_joined(false);
    std::raise(SIGKILL);
  }
  join(20'000ms);
}

RANK_PROGRAM(die_before_the_group) {
  if (rank.rank == 1) {
    say_joined(true);
    std::raise(SIGKILL);
  }
  join(20'000ms);
}

RANK_PROGRAM(die_before_the_share) {
  if (rank.rank == 2) join_replicas(2, {.limit = 20'000ms});
  say_replicas(join(20'000ms));
  if (rank.rank == 1) std::raise(SIGKILL);
  while (true) pause();
}

RANK_PROGRAM(die_before_the_replicas) {
  if (rank.rank != 1) join_replicas(2, {.limit = 20'000ms});
  say_replicas(join(20'000ms));
  std::raise(SIGKILL);
}

RANK_PROGRAM(join_again) {
  if (rank.rank == 1) {
    while (true) pause();
  }
  for (int i = 0; i < 2; ++i) {
    try {
      join(50ms);
    } catch (const Timeout&) {
    }
  }
  std::thread([] { throw UsageError("nobody catches this"); }).join();
}

RANK_PROGRAM(join_late) {
  if (rank.rank == 1) {
    while (true) pause();
  }
  join(300ms);
}
}  // namespace
}  // namespace tutti::test
