// The engine for devices of several hosts, on an NCCL and a CUDA of the tests' own, with rails of
// other engines: what comes out, in which order of work, and how it ends.
#include <gmock/gmock.h>

#include <string>
#include <thread>
#include <vector>

#include "tutti/comm/nccl/nccl_hier.h"

#include "tests/support/collective_oracle.h"
#include "tests/support/meeting.h"
#include "tests/unit/nccl/fakes_test.h"
#include "tests/unit/nccl/queue_sums.h"

namespace tutti::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

class NcclHier : public FakesTest {
 protected:
  struct Hosts {
    int hosts = 2;
    int local = 1;
    std::string rail = "tcp";
    bool apart = false;         ///< each rank on the device of its number, else all on device 0
    int64_t chunk_bytes = 128;  ///< several in most operations here
    std::function<void()> look = [] {};
  };

  static std::vector<std::shared_ptr<Engine>> make(const Hosts& hosts) {
    const int size = hosts.hosts * hosts.local;
    std::vector<std::vector<std::shared_ptr<Engine>>> rails;
    for (int l = 0; l < hosts.local; ++l) rails.push_back(make_engines(hosts.rail, hosts.hosts));
    std::vector<std::unique_ptr<InProcessMeeting>> meetings;
    for (int h = 0; h < hosts.hosts; ++h)
      meetings.push_back(std::make_unique<InProcessMeeting>(hosts.local));
    std::vector<std::shared_ptr<Engine>> engines(static_cast<size_t>(size));
    std::vector<std::thread> threads;
    for (int r = 0; r < size; ++r)
      threads.emplace_back([&, r] {
        const int host = r / hosts.local, local = r % hosts.local;
        const auto place = meetings[static_cast<size_t>(host)]->place(local);
        engines[static_cast<size_t>(r)] =
            make_nccl_hier({.rank = r,
                            .size = size,
                            .inside = place.get(),
                            .rail = rails[static_cast<size_t>(local)][static_cast<size_t>(host)],
                            .look = hosts.look,
                            .chunk_bytes = hosts.chunk_bytes},
                           {.device = hosts.apart ? r : 0});
      });
    for (auto& thread : threads) thread.join();
    return engines;
  }

  /// Several operations in flight at once, each by the oracle.
  static void expect_conforms(const std::vector<std::shared_ptr<Engine>>& engines,
                              const Call& call) {
    const int n = static_cast<int>(engines.size());
    const std::vector before = {make_all_buffers(call, n, 5), make_all_buffers(call, n, 6)};
    auto buffers = before;
    run_all_members(engines, [&](Group group) {
      std::vector<Work> works;
      for (auto& all : buffers) {
        Buffers& mine = all[static_cast<size_t>(group.rank())];
        works.push_back(start(call, group, on_device(span_of_bytes(mine.input, call.dtype)),
                              on_device(span_of_bytes(mine.output, call.dtype))));
      }
      for (Work& work : works) work.wait();
    });
    for (size_t i = 0; i < buffers.size(); ++i)
      for (int r = 0; r < n; ++r)
        EXPECT_EQ(buffers[i][static_cast<size_t>(r)].output, expected_output(call, before[i], r))
            << words_of(call) << " on rank " << r << " of " << n;
  }
};

TEST_F(NcclHier, AddsUpOverHostsInChunks) {
  for (const auto& [hosts, local, rail] :
       {std::tuple{2, 1, "tcp"}, {2, 2, "shm"}, {3, 2, "tcp"}, {2, 3, "tcp"}}) {
    const auto engines = make({.hosts = hosts, .local = local, .rail = rail});
    for (const int64_t length : {0, 1, 2, 5, 32, 97, 1000})
      for (const ReduceOp op : {ReduceOp::sum, ReduceOp::min, ReduceOp::max, ReduceOp::product})
        expect_conforms(engines, {.collective = Collective::all_reduce,
                                  .dtype = length % 2 == 0 ? DType::int32 : DType::int64,
                                  .op = op,
                                  .n = length});
    run_all_members(engines, [](Group group) { group.barrier(); });
  }
}

TEST_F(NcclHier, QueuesAreInOrderWhateverTheirPace) {
  for (const auto& [hosts, local] : {std::pair{2, 1}, {2, 2}})
    in_all_orders(10, [&] {
      EXPECT_EQ(sums_by_queues(make({.hosts = hosts, .local = local, .apart = true})),
                expected_of_queues(hosts * local));
    });
}

TEST_F(NcclHier, EveryWaitBetweenQueuesIsNeeded) {
  for (const std::string wait : {"what the caller has queued", "the operation of NCCL"})
    EXPECT_GT(seeds_that_miss(wait, 20,
                              [] {
                                return sums_by_queues(make({.local = 2, .apart = true})) ==
                                       expected_of_queues(4);
                              }),
              0)
        << "nobody misses the wait for " << wait;
}

TEST_F(NcclHier, SaysWhatItHasNot) {
  const auto engines = make({});
  Group group(engines[0]);
  std::vector<int32_t> numbers(4);
  const MemorySpan host = span_of(std::span(numbers)), span = on_device(host);
  const auto words = [](const std::function<void()>& body) {
    try {
      body();
    } catch (const UsageError& error) {
      return std::string(error.what());
    }
    return std::string("nothing");
  };
  EXPECT_THAT(words([&] { (void)group.broadcast(span, 0); }),
              AllOf(HasSubstr("broadcast"), HasSubstr("use engine nccl")));
  EXPECT_THAT(words([&] { (void)group.all_reduce(span, ReduceOp::bit_or); }),
              HasSubstr("sum, min, max and product"));
  EXPECT_THAT(words([&] { (void)group.split(0); }), HasSubstr("use engine nccl"));
  EXPECT_THAT(words([&] { (void)group.allocate(8); }), HasSubstr("share no memory"));
  EXPECT_NE(words([&] { (void)group.all_reduce(host, ReduceOp::sum); }), "nothing");
  EXPECT_FALSE(engines[0]->follows_shape());
}

std::vector<std::exception_ptr> sum_on_all_but_the_last(
    const std::vector<std::shared_ptr<Engine>>& engines, Millis limit) {
  return run_members(engines, [&](Group group) {
    std::vector<float> data(100, 1);
    if (group.rank() + 1 == group.size()) return;
    group.all_reduce(on_device(span_of(std::span(data))), ReduceOp::sum, limit).wait();
  });
}

TEST_F(NcclHier, APassedLimitIsATimeout) {
  const auto engines = make({.hosts = 2, .local = 2});
  const auto thrown = sum_on_all_but_the_last(engines, Millis{100});
  EXPECT_THAT(words_of(thrown[0]), HasSubstr("all_reduce #1, rank 0 of 4 (hier)"));
  EXPECT_THAT(words_of(thrown[2]), HasSubstr("rank 2 of 4 (hier)"));
  for (const auto& engine : engines) engine->abort(FailureKind::aborted, "the end of the test");
}

TEST_F(NcclHier, WhoOnlyAsksIsToldThatTheLimitHasPassed) {
  const auto engines = make({});
  std::vector<float> data(100, 1);
  Work work =
      Group(engines[0]).all_reduce(on_device(span_of(std::span(data))), ReduceOp::sum, Millis{50});
  const auto ask = [&] {
    const Deadline deadline(kDefaultTimeLimit);
    while (!work.test() && !deadline.passed()) std::this_thread::yield();
  };
  EXPECT_THROW(ask(), Timeout);
}

TEST_F(NcclHier, AnAbortReachesHostsAndDevices) {
  const auto engines = make({.hosts = 2, .local = 2});
  const auto thrown = run_members(engines, [&](Group group) {
    std::vector<float> data(100, 1);
    if (group.rank() == 3) group.abort("the disk is full");
    group.all_reduce(on_device(span_of(std::span(data))), ReduceOp::sum).wait();
  });
  for (size_t r : {0, 1, 2}) EXPECT_THAT(words_of(thrown[r]), HasSubstr("PeerLost")) << r;
  EXPECT_THAT(words_of(thrown[3]), HasSubstr("Error: "));
}

TEST_F(NcclHier, WhatOthersHaveLearntEndsTheWait) {
  const auto engines =
      make({.hosts = 2, .local = 1, .look = [] { throw PeerLost("rank 7 is gone"); }});
  const auto thrown = sum_on_all_but_the_last(engines, kDefaultTimeLimit);
  EXPECT_THAT(words_of(thrown[0]), AllOf(HasSubstr("PeerLost"), HasSubstr("rank 7 is gone")));
}

TEST_F(NcclHier, GivesEverythingBack) {
  {
    const auto engines = make({.hosts = 2, .local = 2});
    expect_conforms(engines, {.collective = Collective::all_reduce, .n = 500});
  }
  EXPECT_EQ(fake_calls().back(), "ncclCommDestroy");
}

}  // namespace
}  // namespace tutti::test
