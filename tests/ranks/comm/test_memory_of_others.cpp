// Whoever is through with an operation, by an error or a limit, may use its memory anew: nobody
// reads or writes there any more.
#include <algorithm>
#include <atomic>
#include <random>

#include "tests/support/comm.h"
#include "tests/support/expect.h"

namespace tutti {
namespace {

// Members free their buffers as soon as they throw; nobody may still read them. Address and thread
// sanitizer watch this one.
TEST(Abort, LeavesNobodyInTheBuffersOfOthers) {
  for (uint32_t round = 0; round < 60; ++round) {
    const auto members = make_shm_threads(3);
    const auto errors = errors_of(members, [&](Group group) {
      std::mt19937 random(round);
      const uint32_t last = random() % 12;
      for (uint32_t i = 0;; ++i) {
        std::vector<float> data(40'000, 1.f);
        Work work = group.all_reduce(span_of(std::span(data)), ReduceOp::sum);
        if (i == last && group.rank() == static_cast<int>(round % 3)) group.abort("enough");
        work.wait();
      }
    });
    EXPECT_THAT(errors, Each(HasSubstr("enough")));
  }
}

// The same where members are as processes are: memory stays mapped, and is used for something else.
TEST(Abort, LeavesNobodyInMemoryThatIsUsedAnew) {
  constexpr int64_t kElements = 40'000;
  for (uint32_t round = 0; round < 60; ++round) {
    const auto errors = errors_of(make_engines("shm staged", 3), [&](Group group) {
      const SharedParts shared = group.allocate(kElements * 4);
      const std::span data(static_cast<float*>(shared.parts[group.rank()].data), kElements);
      std::mt19937 random(round);
      const uint32_t last = random() % 12;
      for (uint32_t i = 0;; ++i) {
        std::ranges::fill(data, 1.f);
        Work work = group.all_reduce(span_of(data), ReduceOp::sum);
        if (i == last && group.rank() == static_cast<int>(round % 3)) group.abort("enough");
        try {
          work.wait();
        } catch (const Error&) {
          std::ranges::fill(data, 1e9f);
          throw;
        }
        EXPECT_EQ(std::ranges::count(data, 3.f), kElements);
      }
    });
    EXPECT_THAT(errors, Each(HasSubstr("enough")));
  }
}

// Rank 1 announces its part and computes on; rank 0 has done its own, its limit passes, and it uses
// its memory for something else. Whatever rank 1 finds there later is no result.
TEST(GivenUp, MemoryIsNotTakenForData) {
  constexpr int64_t kElements = 60'000;
  struct Operation {
    const char* name;
    std::function<Work(Group&, MemorySpan, MemorySpan, Millis)> submit;
  };
  const Operation operations[] = {
      {"all_reduce", [](Group& g, MemorySpan data, MemorySpan,
                        Millis limit) { return g.all_reduce(data, ReduceOp::sum, limit); }},
      {"broadcast", [](Group& g, MemorySpan data, MemorySpan,
                       Millis limit) { return g.broadcast(data, 0, limit); }},
      {"all_to_all", [](Group& g, MemorySpan data, MemorySpan own,
                        Millis limit) { return g.all_to_all(data, own, {}, {}, limit); }},
  };
  for (const char* engine : {"shm", "shm staged"})
    for (const Operation& operation : operations) {
      std::atomic<bool> called{false}, used_anew{false};
      const auto errors = errors_of(make_engines(engine, 2), [&](Group group) {
        const SharedParts shared = group.allocate(kElements * 4);
        const std::span data(static_cast<float*>(shared.parts[group.rank()].data), kElements);
        std::vector<float> own(kElements);
        std::ranges::fill(data, 1.f);
        if (group.rank() == 0) called.wait(false);
        Work work = operation.submit(group, span_of(data), span_of(std::span(own)),
                                     Millis{group.rank() == 0 ? 40 : 20'000});
        if (group.rank() == 1) {
          called = true;
          called.notify_one();
          used_anew.wait(false);
          return work.wait();
        }
        const auto tell = std::shared_ptr<void>(nullptr, [&](void*) {
          std::ranges::fill(data, 100.f);
          used_anew = true;
          used_anew.notify_one();
        });
        work.wait();
      });
      EXPECT_THAT(errors, Each(AllOf(StartsWith("Timeout: "), HasSubstr("limit of 40 ms"))))
          << engine << ", " << operation.name;
    }
}

TEST(GivenUp, AMessageIsNotReadWhereItLay) {
  constexpr int64_t kElements = 60'000;
  for (const char* engine : {"shm", "shm staged"}) {
    std::atomic<bool> called{false}, used_anew{false};
    const auto errors = errors_of(make_engines(engine, 2), [&](Group group) {
      const SharedParts shared = group.allocate(kElements * 4);
      const std::span data(static_cast<float*>(shared.parts[group.rank()].data), kElements);
      if (group.rank() == 1) {
        Work work = group.recv(span_of(data), 0);
        called = true;
        called.notify_one();
        used_anew.wait(false);
        while (!work.test()) std::this_thread::yield();
        return;
      }
      called.wait(false);
      const auto tell = std::shared_ptr<void>(nullptr, [&](void*) {
        std::ranges::fill(data, 100.f);
        used_anew = true;
        used_anew.notify_one();
      });
      group.send(span_of(data), 1, 0, Millis{40}).wait();
    });
    EXPECT_THAT(errors, Each(AllOf(StartsWith("Timeout: "), HasSubstr("limit of 40 ms"))))
        << engine;
  }
}

}  // namespace
}  // namespace tutti
