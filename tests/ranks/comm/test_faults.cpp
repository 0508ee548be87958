// What ends an operation other than success, with members on threads: of each engine silence, abort
// and leaving; of shm disagreement and too little memory too. Each error is checked on every
// member.
#include <unistd.h>

#include <algorithm>
#include <atomic>

#include "tutti/base/host.h"
#include "tutti/net/arena.h"

#include "tests/ranks/comm/calls.h"
#include "tests/support/comm.h"
#include "tests/support/expect.h"

namespace tutti {
namespace {

// Parts of 1 float a rank and one of `odd` for rank 1.
GroupCall all_gather(int64_t odd) {
  return [=](Group group) {
    std::vector<int64_t> counts(static_cast<size_t>(group.size()), 1);
    counts[1] = odd;
    counts[2] = 10 - odd;
    std::vector<float> part(10), all(12);
    group
        .all_gather(span_of(std::span(part).first(static_cast<size_t>(counts[group.rank()]))),
                    span_of(std::span(all).first(11)), counts)
        .wait();
  };
}

GroupCall scatter(int64_t n, int root) {
  return [=](Group group) {
    std::vector<float> part(static_cast<size_t>(n)), all(static_cast<size_t>(n * group.size()));
    group.scatter(span_of(std::span(all)), span_of(std::span(part)), root).wait();
  };
}

GroupCall all_to_all(int64_t n) {
  return [=](Group group) {
    std::vector<float> from(static_cast<size_t>(n * group.size())), to(from.size());
    group.all_to_all(span_of(std::span(from)), span_of(std::span(to))).wait();
  };
}

struct Disagreement {
  std::string name;
  GroupCall common, odd;
  std::string first, second;
};

TEST(Mismatch, NamesBothCallsOnEveryRank) {
  const Disagreement table[] = {
      {"length", all_reduce(10), all_reduce(11), "all_reduce (sum) of 10 float32",
       "all_reduce (sum) of 11 float32"},
      {"dtype", all_reduce(10), all_reduce(10, DType::int32), "of 10 float32", "of 10 int32"},
      {"operation", all_reduce(10), all_reduce(10, DType::float32, ReduceOp::max),
       "all_reduce (sum)", "all_reduce (max)"},
      {"collective", all_reduce(10), broadcast(10, 0), "all_reduce (sum) of 10 float32",
       "broadcast of 10 float32 from rank 0"},
      {"root", broadcast(500, 0), broadcast(500, 2), "from rank 0", "from rank 2"},
      {"path", all_reduce(3), all_reduce(100'000), "of 3 float32", "of 100000 float32"},
      {"large", all_reduce(100'001), all_reduce(100'000), "of 100001 ", "of 100000 "},
      {"list of counts", all_gather(3), all_gather(4), "gave different counts to all_gather of 11",
       "rank 1"},
      {"root of a scatter", scatter(5'000, 0), scatter(5'000, 1),
       "scatter of 5000 float32 from rank 0", "from rank 1"},
      {"parts", all_to_all(5), all_to_all(6), "all_to_all of 15 float32", "all_to_all of 18"},
      {"gather", all_gather(3), scatter(11, 2), "all_gather of 11 float32, in parts",
       "scatter of 11 float32 from rank 2"},
      {"barrier", kBarrier, all_reduce(0), "called barrier", "all_reduce (sum) of 0 float32"},
  };
  for (const auto& row : table)
    for (const char* engine : {"shm", "shm staged"}) {
      const auto errors = errors_of(make_engines(engine, 3), [&](Group group) {
        group.barrier();
        group.rank() == 1 ? row.odd(group) : row.common(group);
      });
      EXPECT_THAT(errors, Each(AllOf(StartsWith("Mismatch: "), HasSubstr("operation #2"),
                                     HasSubstr("rank 0 "), HasSubstr("rank 1 "),
                                     HasSubstr(row.first), HasSubstr(row.second))))
          << row.name;
    }
}

TEST(Mismatch, OfCountsBetweenAPairNamesBoth) {
  for (const char* engine : {"shm", "shm staged"}) {
    const auto errors = errors_of(make_engines(engine, 3), [&](Group group) {
      // Rank 2 gives 5 to rank 1, which wants 4.
      std::vector<int64_t> send = {1, 1, 1}, receive = {1, 1, 1};
      if (group.rank() == 2) send[1] = 5;
      if (group.rank() == 1) receive[2] = 4;
      std::vector<float> from(10), to(10);
      const auto total = [](const auto& counts) {
        return static_cast<size_t>(counts[0] + counts[1] + counts[2]);
      };
      group
          .all_to_all(span_of(std::span(from).first(total(send))),
                      span_of(std::span(to).first(total(receive))), send, receive)
          .wait();
    });
    EXPECT_THAT(errors,
                Each(AllOf(StartsWith("Mismatch: "),
                           HasSubstr("rank 2 sends 5 elements to rank 1, which expects 4"))));
  }
}

TEST(Mismatch, OfTheOrderAmongOperationsInFlight) {
  const auto errors = errors_of(make_shm_threads(2), [](Group group) {
    std::vector<float> a(50'000), b(7);
    const auto first = span_of(std::span(group.rank() == 0 ? a : b));
    const auto second = span_of(std::span(group.rank() == 0 ? b : a));
    Work one = group.all_reduce(first, ReduceOp::sum);
    Work two = group.all_reduce(second, ReduceOp::sum);
    two.wait();
  });
  EXPECT_THAT(errors,
              Each(AllOf(StartsWith("Mismatch: "), HasSubstr("of 50000"), HasSubstr("of 7 "))));
}

TEST(Silence, TimeoutOfTheShorterOfBothLimitsEndsTheGroup) {
  std::atomic<bool> over{false};
  const auto errors = errors_of(make_shm_threads(2), [&](Group group) {
    std::vector<float> data(10);
    if (group.rank() == 0) {
      Work work = group.all_reduce(span_of(std::span(data)), ReduceOp::sum);
      EXPECT_THROW(work.wait(Millis{30}), Timeout);
      over = true;
      work.wait();
    }
    while (!over) std::this_thread::yield();
    group.barrier();
  });
  EXPECT_THAT(errors, Each(AllOf(StartsWith("Timeout: "), HasSubstr("limit of 30 ms"),
                                 HasSubstr("rank 1: it has called nothing yet"))));
}

// All have called it, and one goes no further: chunks pass through slots, so the rest wait for it.
TEST(Silence, NamesTheRankThatIsBehindInAStagedOperation) {
  struct Operation {
    const char* name;
    std::function<Work(Group&, MemorySpan, Millis)> submit;
  };
  const Operation operations[] = {
      {"all_reduce", [](Group& g, MemorySpan data,
                        Millis limit) { return g.all_reduce(data, ReduceOp::sum, limit); }},
      {"broadcast from the silent rank",
       [](Group& g, MemorySpan data, Millis limit) { return g.broadcast(data, 1, limit); }},
      {"broadcast to the silent rank",
       [](Group& g, MemorySpan data, Millis limit) { return g.broadcast(data, 0, limit); }},
  };
  for (const Operation& operation : operations) {
    std::atomic<int> done{0};
    const auto errors = errors_of(make_engines("shm staged", 3), [&](Group group) {
      std::vector<float> data(4'000'000);
      const auto count = std::shared_ptr<void>(nullptr, [&](void*) { ++done; });
      Work work = operation.submit(group, span_of(std::span(data)), Millis{300});
      if (group.rank() != 1) work.wait();
      while (done < 2) std::this_thread::yield();
    });
    for (int r : {0, 2})
      EXPECT_THAT(errors[r], AllOf(StartsWith("Timeout: "), HasSubstr("silent: rank 1"),
                                   HasSubstr("has not done its part"), Not(HasSubstr("; rank"))))
          << operation.name;
  }
}

// Rank 0 waits for rank 1, and that in another group for rank 2.
TEST(Silence, WhoWaitsInAnotherGroupSaysForWhom) {
  std::atomic<bool> waits{false}, told{false};
  const auto errors = errors_of(make_shm_threads(3), [&](Group group) {
    auto first = group.split(group.rank() < 2 ? 0 : -1);
    auto second = group.split(group.rank() > 0 ? 0 : -1);
    std::vector<float> data(10);
    if (group.rank() == 0) {
      const auto tell = std::shared_ptr<void>(nullptr, [&](void*) {
        told = true;
        told.notify_all();
      });
      waits.wait(false);
      first->all_reduce(span_of(std::span(data)), ReduceOp::sum, Millis{1}).wait();
    }
    if (group.rank() == 1)
      second->engine().set_idle([&] {
        waits = true;
        waits.notify_all();
      });
    if (group.rank() == 2) told.wait(false);
    second->all_reduce(span_of(std::span(data)), ReduceOp::sum).wait();
    second->engine().set_idle({});
  });
  EXPECT_THAT(errors[0], AllOf(StartsWith("Timeout: "),
                               HasSubstr("silent: rank 1: it has called nothing yet, and it waits "
                                         "for rank 2 of 3\n")));
  EXPECT_THAT(errors, Contains("").Times(2));
}

TEST(Silence, TheLongestLimitIsNoShortOne) {
  std::atomic<bool> looked{false};
  const auto errors = errors_of(make_shm_threads(2), [&](Group group) {
    if (group.rank() == 1) looked.wait(false);
    std::vector<float> data(10);
    Work work = group.all_reduce(span_of(std::span(data)), ReduceOp::sum, Millis::max());
    if (group.rank() == 0) {
      EXPECT_NO_THROW(EXPECT_FALSE(work.test()));
      looked = true;
      looked.notify_one();
    }
    work.wait();
  });
  EXPECT_THAT(errors, Each(""));
}

// ---- of every engine ----

struct Failing {
  const char* engine;
  std::vector<int64_t> lengths;
};

void PrintTo(const Failing& failing, std::ostream* out) { *out << failing.engine; }

class Failures : public testing::TestWithParam<Failing> {
 protected:
  std::vector<std::shared_ptr<Engine>> members(int size) const {
    return make_engines(GetParam().engine, size);
  }
};

// Of shm: inline, in a small slot, and reduced where it lies. Of tcp: one frame, many small ones,
// and more than the sockets hold.
INSTANTIATE_TEST_SUITE_P(Engines, Failures,
                         testing::Values(Failing{"shm", {3, 200, 100'000}},
                                         Failing{"tcp", {3, 20'000, 4'000'000}}),
                         testing::PrintToStringParamName());

TEST_P(Failures, TimeoutNamesTheSilentRankAndWhatItDidLast) {
  for (const int64_t n : GetParam().lengths) {
    std::atomic<int> over{0}, ready{0};
    const auto errors = errors_of(members(3), [&](Group group) {
      all_reduce(10)(group);
      if (group.rank() == 2) {
        while (over < 2) std::this_thread::yield();
        return;
      }
      const auto count = std::shared_ptr<void>(nullptr, [&](void*) { ++over; });
      std::vector<float> data(n);
      for (++ready; ready < 2;) std::this_thread::yield();
      group.all_reduce(span_of(std::span(data)), ReduceOp::sum, Millis{60}).wait();
    });
    EXPECT_EQ(errors[2], "");
    for (int r : {0, 1})
      EXPECT_THAT(errors[r],
                  AllOf(StartsWith("Timeout: all_reduce #2, rank "), HasSubstr("limit of 60 ms"),
                        HasSubstr("silent: rank 2: its last call was all_reduce (sum) of 10 "
                                  "float32 (#1)"),
                        Not(HasSubstr("rank 0:")), Not(HasSubstr("rank 1:"))))
          << n;
  }
}

TEST_P(Failures, PollingSeesPassedLimitsToo) {
  std::atomic<bool> over{false};
  const auto errors = errors_of(members(2), [&](Group group) {
    std::vector<float> data(10);
    if (group.rank() == 1) {
      while (!over) std::this_thread::yield();
      return;
    }
    const auto end = std::shared_ptr<void>(nullptr, [&](void*) { over = true; });
    Work work = group.all_reduce(span_of(std::span(data)), ReduceOp::sum, Millis{40});
    while (!work.test()) std::this_thread::yield();
  });
  EXPECT_THAT(errors[0], StartsWith("Timeout: all_reduce #1, rank 0 of 2"));
}

TEST_P(Failures, AnAbortEndsEveryWaiterAndAllThatFollowsWithTheFirstReason) {
  for (const int64_t n : GetParam().lengths) {
    const auto members = this->members(4);
    std::atomic<int> waiting{0};
    std::thread outside([&] {  // not a member's thread, as a signal watcher would be
      while (waiting < 3) std::this_thread::yield();
      members[1]->abort(FailureKind::aborted, "the loader of rank 1 failed: disk full");
      members[1]->abort(FailureKind::aborted, "later reason");
    });
    const auto errors = errors_of(members, [&](Group group) {
      std::vector<float> data(n);
      if (group.rank() == 3) {
        outside.join();
        EXPECT_THAT([&] { group.barrier(); }, ThrowsMessage<Error>(HasSubstr("disk full")));
        if (members[0]->name() == "shm") (void)group.allocate(10);
      }
      Work work = group.all_reduce(span_of(std::span(data)), ReduceOp::sum);
      ++waiting;
      work.wait();
    });
    EXPECT_THAT(errors,
                Each(HasSubstr("aborted by rank 1: the loader of rank 1 failed: disk full")))
        << n;
    for (int r : {0, 2, 3}) EXPECT_THAT(errors[r], StartsWith("PeerLost: ")) << n;
    EXPECT_THAT(errors[1], StartsWith("Error: ")) << n;
  }
}

TEST_P(Failures, LeavingEndsThoseWhoStillNeedTheRank) {
  for (const int64_t n : GetParam().lengths) {
    auto all = members(3);
    const auto errors = errors_of({all[0], all[2]}, [&](Group group) {
      if (group.rank() == 0) all[1].reset();
      all_reduce(n)(group);
    });
    EXPECT_THAT(errors, Each(AllOf(StartsWith("PeerLost: all_reduce #1, rank "),
                                   HasSubstr("rank 1 left the group; it has called nothing yet"))));
  }
}

TEST_P(Failures, LeavingInTheMiddleOfAnOperationNamesIt) {
  auto all = members(2);
  const auto errors = errors_of({all[0]}, [&](Group group) {
    std::vector<float> mine(100'000), others(100'000);
    (void)Group(all[1]).all_reduce(span_of(std::span(others)), ReduceOp::sum);
    all[1].reset();
    group.all_reduce(span_of(std::span(mine)), ReduceOp::sum).wait();
  });
  EXPECT_THAT(errors[0], AllOf(StartsWith("PeerLost: "),
                               HasSubstr("rank 1 left the group in the middle of all_reduce #1")));
}

void expect_leaving_disturbs_nobody(const char* engine, int rounds,
                                    const std::vector<int64_t>& lengths) {
  for (int round = 0; round < rounds; ++round) {
    auto members = make_engines(engine, 4);
    const auto errors = errors_of(members, [&](Group group) {
      for (const int64_t n : lengths) all_reduce(n)(group);
      members[group.rank()].reset();
    });
    EXPECT_THAT(errors, Each("")) << engine << " " << round;
  }
}

TEST(Leaving, AfterTheLastOperationDisturbsNobody) {
  expect_leaving_disturbs_nobody("shm", 50, {3, 200, 100'000});
  for (const char* engine : {"tcp", "tcp loopback"})
    expect_leaving_disturbs_nobody(engine, 20, {3, 20'000, 300'000});
}

TEST(Joining, ClaimsEachRankOnceAndNamesTheMissing) {
  const ShmSegment segment = ShmSegment::create(3);
  EXPECT_THAT([&] { make_shm(segment, 3, true); },
              ThrowsMessage<UsageError>(HasSubstr("rank 3; expected 0 to 2")));
  EXPECT_THAT([&] { make_shm(segment, 1, true, Millis{30}); },
              ThrowsMessage<Timeout>(AllOf(HasSubstr("joining, rank 1 of 3"),
                                           HasSubstr("ranks 0, 2 did not come within 30 ms"))));
  EXPECT_THAT([&] { make_shm(segment, 1, true, Millis{30}); },
              ThrowsMessage<UsageError>(HasSubstr("rank 1 of 3 was made before")));
}

TEST(Segments, RefuseWhatIsNone) {
  EXPECT_THROW(ShmSegment::create(0), UsageError);
  EXPECT_THROW(ShmSegment::create(100'000), UsageError);
  EXPECT_THROW(ShmSegment::open(-1), UsageError);
  const SharedFile other = SharedFile::create("other");
  EXPECT_THAT([&] { ShmSegment::open(other.descriptor()); },
              ThrowsMessage<UsageError>(HasSubstr("is not a segment of tutti")));
}

TEST(Allocate, TooMuchIsAnErrorWithBothSizesAndTheGroupGoesOn) {
  const int64_t too_much = read_host_facts().memory_total_bytes;
  const auto errors = errors_of(make_shm_threads(3), [&](Group group) {
    std::string error;
    try {
      (void)group.allocate(group.rank() == 1 ? too_much : 1000);
    } catch (const Error& thrown) {
      error = thrown.what();
    }
    EXPECT_THAT(error, AllOf(HasSubstr("wanted for all ranks"), HasSubstr(size_words(too_much)),
                             HasSubstr("left")));
    const SharedParts shared = group.allocate(5000);
    std::memset(shared.parts[group.rank()].data, 1, 5000);
    all_reduce(100)(group);
  });
  EXPECT_THAT(errors, Each(""));
}

}  // namespace
}  // namespace tutti
