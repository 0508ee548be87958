// Engine nccl on an NCCL and a CUDA of the tests' own: which calls it makes in which order, what
// comes out, and how it ends. What runs on a real device is in tests/ranks/nccl.
#include <gmock/gmock.h>

#include <thread>

#include "tutti/comm/group/group.h"
#include "tutti/comm/nccl/nccl.h"

#include "tests/support/collective_oracle.h"
#include "tests/support/comm.h"
#include "tests/support/fake_cuda/orders.h"
#include "tests/support/fake_nccl/fake_nccl.h"
#include "tests/support/meeting.h"
#include "tests/unit/nccl/fakes_test.h"
#include "tests/unit/nccl/queue_sums.h"

namespace tutti::test {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

class Nccl : public FakesTest {
 protected:
  /// Of ranks that are all on device 0, or each on the device of its number.
  static std::vector<std::shared_ptr<Engine>> make(int size, bool apart = false) {
    InProcessMeeting meeting(size);
    std::vector<std::shared_ptr<Engine>> engines(static_cast<size_t>(size));
    std::vector<std::thread> threads;
    for (int r = 0; r < size; ++r)
      threads.emplace_back(
          [&, r] { engines[r] = make_nccl(*meeting.place(r), {.device = apart ? r : 0}); });
    for (auto& thread : threads) thread.join();
    return engines;
  }

  static void expect_conforms(const std::vector<std::shared_ptr<Engine>>& engines,
                              const Call& call) {
    const int n = static_cast<int>(engines.size());
    const auto before = make_all_buffers(call, n, 5);
    auto buffers = before;
    run_all_members(engines, [&](Group group) {
      Buffers& mine = buffers[group.rank()];
      start(call, group, on_device(span_of_bytes(mine.input, call.dtype)),
            on_device(span_of_bytes(mine.output, call.dtype)))
          .wait();
    });
    for (int r = 0; r < n; ++r)
      EXPECT_EQ(buffers[r].output, expected_output(call, before, r))
          << words_of(call) << " on rank " << r << " of " << n;
  }
};

TEST_F(Nccl, SaysItsVersion) { EXPECT_EQ(nccl_version(), "2.28.0"); }

TEST_F(Nccl, CarriesOutEveryCollective) {
  for (int n : {1, 2, 3, 4}) {
    const auto engines = make(n);
    for (Collective collective :
         {Collective::all_reduce, Collective::reduce, Collective::reduce_scatter,
          Collective::all_gather, Collective::broadcast, Collective::scatter, Collective::gather,
          Collective::all_to_all})
      for (int64_t length : {0, 1, 1000})
        expect_conforms(
            engines, {.collective = collective, .dtype = DType::int32, .root = n - 1, .n = length});
  }
  EXPECT_THAT(fake_complaints(), IsEmpty());
}

TEST_F(Nccl, CarriesOutUnequalParts) {
  const auto engines = make(3);
  const std::vector<int64_t> counts = {4, 0, 700};
  for (Collective collective : {Collective::reduce_scatter, Collective::all_gather,
                                Collective::scatter, Collective::gather})
    expect_conforms(
        engines, {.collective = collective, .dtype = DType::int64, .root = 1, .counts = {counts}});
  expect_conforms(engines, {.collective = Collective::all_to_all,
                            .dtype = DType::float64,
                            .counts = {{1, 2, 3}, {0, 0, 50}, {7, 8, 0}}});
}

TEST_F(Nccl, AddsByEveryOperationOfNccl) {
  const auto engines = make(2);
  for (ReduceOp op :
       {ReduceOp::sum, ReduceOp::mean, ReduceOp::min, ReduceOp::max, ReduceOp::product})
    for (DType dtype : {DType::float32, DType::float64})
      expect_conforms(engines,
                      {.collective = Collective::all_reduce, .dtype = dtype, .op = op, .n = 100});
}

TEST_F(Nccl, OrdersItselfAfterTheCallersStreamAndBeforeTheOneThatWaits) {
  const auto engines = make(1);
  std::vector<float> data(8, 1);
  const MemorySpan span = on_device(span_of(std::span(data)));
  const size_t before = fake_calls().size();
  set_fake_rules({.hang = true});  // it is still at work when the other stream is to wait for it
  Group group(engines[0]);
  Work work = group.all_reduce(span, ReduceOp::sum);
  work.wait_on(Stream{});
  const std::vector<std::string> all = fake_calls();
  EXPECT_THAT(std::vector(all.begin() + static_cast<std::ptrdiff_t>(before), all.end()),
              ElementsAre("record event", "wait event", "ncclGroupStart", "ncclAllReduce",
                          "ncclGroupEnd", "record event", "wait event"));
  engines[0]->abort(FailureKind::aborted, "the end of the test");
}

TEST_F(Nccl, QueuesAreInOrderWhateverTheirPace) {
  for (int ranks : {1, 2, 3})
    in_all_orders(20,
                  [&] { EXPECT_EQ(sums_by_queues(make(ranks, true)), expected_of_queues(ranks)); });
}

TEST_F(Nccl, EveryWaitBetweenQueuesIsNeeded) {
  for (const std::string wait : {"what the caller has queued", "the operation of NCCL"}) {
    const int missed = seeds_that_miss(
        wait, 20, [] { return sums_by_queues(make(2, true)) == expected_of_queues(2); });
    EXPECT_GT(missed, 0) << "nobody misses the wait for " << wait;
    RecordProperty(wait, missed);
  }
}

TEST_F(Nccl, PutsABatchIntoOneGroup) {
  const auto engines = make(2);
  run_all_members(engines, [&](Group group) {
    std::vector<int32_t> out(10, group.rank());
    std::vector<int32_t> in(10, -1);
    int source = -1;
    // Both send first: within a group the order does not matter.
    const Operation batch[] = {{.collective = Collective::send,
                                .root = 1 - group.rank(),
                                .input = on_device(span_of(std::span(out)))},
                               {.collective = Collective::recv,
                                .root = 1 - group.rank(),
                                .output = on_device(span_of(std::span(in))),
                                .source = &source}};
    Engine& engine = group.engine();
    engine.progress(engine.submit(batch), Deadline(Millis{10'000}));
    EXPECT_EQ(in, std::vector<int32_t>(10, 1 - group.rank()));
    EXPECT_EQ(source, 1 - group.rank());
  });
}

TEST_F(Nccl, SplitsByColorAndKey) {
  const auto engines = make(5);
  run_all_members(engines, [](Group whole) {
    const int me = whole.rank();
    std::optional<Group> part = whole.split(me == 3 ? -1 : me % 2, -me);
    if (me == 3) {
      EXPECT_FALSE(part);
      return;
    }
    ASSERT_TRUE(part);
    EXPECT_EQ(part->size(), me % 2 == 0 ? 3 : 1);
    EXPECT_EQ(part->rank(), me % 2 == 0 ? (4 - me) / 2 : 0);
    std::vector<int32_t> sum = {1 << me};
    part->all_reduce(on_device(span_of(std::span(sum))), ReduceOp::sum).wait();
    EXPECT_EQ(sum[0], me % 2 == 0 ? 1 + 4 + 16 : 2);
  });
}

TEST_F(Nccl, SaysWhatNcclHasNot) {
  const auto engines = make(2);
  Group group(engines[0]);
  std::vector<int16_t> shorts(4);
  std::vector<int32_t> numbers(4);
  const MemorySpan host = span_of(std::span(numbers));
  const MemorySpan span = on_device(host);
  const auto words = [](const std::function<void()>& body) {
    try {
      body();
    } catch (const UsageError& error) {
      return std::string(error.what());
    }
    return std::string("nothing");
  };
  const auto sum_of = [&](MemorySpan of, ReduceOp op) {
    return words([&, of, op] { (void)group.all_reduce(of, op); });
  };
  EXPECT_THAT(sum_of(on_device(span_of(std::span(shorts))), ReduceOp::sum),
              HasSubstr("NCCL has no sums of int16"));
  EXPECT_THAT(sum_of(span, ReduceOp::bit_xor), HasSubstr("NCCL has no operation bit_xor"));
  EXPECT_THAT(sum_of(host, ReduceOp::sum), HasSubstr("nccl"));
  EXPECT_THAT(words([&] { (void)group.recv(span, kAnyRank); }), HasSubstr("from any rank"));
  EXPECT_THAT(words([&] { (void)group.send(span, 1, 3); }), HasSubstr("no tags"));
  EXPECT_THAT(words([&] { (void)group.allocate(8); }), HasSubstr("devices share no memory"));
  EXPECT_FALSE(engines[0]->follows_shape());
}

TEST_F(Nccl, APassedLimitAbortsTheCommunicator) {
  const auto engines = make(1);
  set_fake_rules({.hang = true});
  std::vector<float> data(4);
  Work work =
      Group(engines[0]).all_reduce(on_device(span_of(std::span(data))), ReduceOp::sum, Millis{50});
  const auto thrown = run_members({engines[0]}, [&](Group) { work.wait(); });
  EXPECT_THAT(words_of(thrown[0]),
              AllOf(HasSubstr("Timeout: all_reduce #1, rank 0 of 1 (nccl)"), HasSubstr("50 ms")));
  EXPECT_EQ(fake_calls().back(), "ncclCommAbort");
  EXPECT_THROW(work.wait(), Timeout) << "and stays so";
}

TEST_F(Nccl, AConnectionThatIsNeverMadeIsATimeout) {
  const auto engines = make(1);
  set_fake_rules({.never_ready = true});
  std::vector<float> data(4);
  const auto thrown = run_members({engines[0]}, [&](Group group) {
    group.all_reduce(on_device(span_of(std::span(data))), ReduceOp::sum, Millis{50}).wait();
  });
  EXPECT_THAT(words_of(thrown[0]), HasSubstr("NCCL is still connecting ranks"));
}

TEST_F(Nccl, ALostPeerEndsTheWait) {
  const auto engines = make(2);
  set_fake_rules({.hang = true});
  const auto thrown = run_members(engines, [&](Group group) {
    std::vector<float> data(4);
    const auto span = on_device(span_of(std::span(data)));
    if (group.rank() == 1) group.abort("the disk is full");
    group.all_reduce(span, ReduceOp::sum).wait();
  });
  EXPECT_THAT(words_of(thrown[0]),
              AllOf(HasSubstr("PeerLost"), HasSubstr("remote process exited")));
  EXPECT_THAT(words_of(thrown[1]),
              AllOf(HasSubstr("Error"), HasSubstr("aborted by rank 1: the disk is full")));
}

TEST_F(Nccl, AbortFromAnotherThreadEndsTheWait) {
  const auto engines = make(1);
  set_fake_rules({.hang = true});
  std::vector<float> data(4);
  Work work = Group(engines[0]).all_reduce(on_device(span_of(std::span(data))), ReduceOp::sum);
  std::thread other([&] { engines[0]->abort(FailureKind::peer_lost, "rank 4 died"); });
  const auto thrown = run_members({engines[0]}, [&](Group) { work.wait(); });
  other.join();
  EXPECT_THAT(words_of(thrown[0]), AllOf(HasSubstr("PeerLost"), HasSubstr("rank 4 died")));
}

TEST_F(Nccl, RanksThatDoNotComeAreATimeout) {
  reset_fakes({.never_ready = true});
  InProcessMeeting meeting(1);
  EXPECT_THROW(make_nccl(*meeting.place(0), {.limit = Millis{50}}), Timeout);
}

TEST_F(Nccl, GivesEverythingBack) {
  {
    const auto engines = make(3);
    expect_conforms(engines, {.collective = Collective::all_reduce, .n = 10});
    run_all_members(engines, [](Group group) { group.barrier(); });
  }
  EXPECT_EQ(fake_calls().back(), "ncclCommDestroy");
}

}  // namespace
}  // namespace tutti::test
