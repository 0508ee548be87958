// What workers tell each other: alone, and in step; those that may be lost are in
// test_central_storage.cpp.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <latch>

#include "tutti/base/detail/failed_elsewhere.h"
#include "tutti/base/error.h"
#include "tutti/base/threads.h"
#include "tutti/comm/shm/shm.h"
#include "tutti/strategy/membership/membership.h"

#include "tests/support/message_of.h"

namespace tutti {
namespace {

using detail::FailedElsewhere;
using test::message_of;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Pair;

std::exception_ptr error(const char* words) { return std::make_exception_ptr(Error(words)); }

// Calls fn(worker, its Membership) in a thread each, of workers with one replica.
template <class Fn>
void for_workers(int count, const Fn& fn, Millis limit = Millis{30'000}) {
  std::vector<World> worlds(static_cast<size_t>(count));
  auto engines = make_shm_threads(count);
  at_once(count, "a worker", [&](int worker) {
    World& world = worlds[static_cast<size_t>(worker)];
    world.size = count;
    world.first_rank = worker;
    world.time_limit = limit;
    world.groups.emplace_back(std::move(engines[static_cast<size_t>(worker)]));
    const Membership members(world);
    fn(worker, members);
  });
}

TEST(Membership, WhoIsAloneHasItsOwnAtOnce) {
  World world;
  world.size = world.local = 3;  // no groups: who takes turns can wait for nobody
  const Membership members(world);
  EXPECT_TRUE(members.alone());
  EXPECT_FALSE(members.in_step());
  EXPECT_THAT(members.all_of(2.5), ElementsAre(2.5));
  EXPECT_THAT(members.words_of_all("own"), ElementsAre(Pair(0, "own")));
  EXPECT_NO_THROW(members.require_same("fit", "lr: 1\n"));
  EXPECT_NO_THROW(members.agree_on_failure(nullptr, "save"));
  EXPECT_EQ(message_of<Error>([&] { members.agree_on_failure(error("disk is full"), "save"); }),
            "disk is full");
  EXPECT_EQ(members.those_here().size, 3);
  int calls = 0;
  members.by_chief([&] { ++calls; });
  EXPECT_EQ(calls, 1);
}

TEST(Membership, WorkersInStepHaveWhatAllHaveBrought) {
  for_workers(3, [](int worker, const Membership& members) {
    EXPECT_TRUE(members.in_step());
    EXPECT_THAT(members.all_of(worker + 0.5), ElementsAre(0.5, 1.5, 2.5));
    EXPECT_THAT(members.words_of_all(std::string(static_cast<size_t>(worker), 'x')),
                ElementsAre(Pair(0, ""), Pair(1, "x"), Pair(2, "xx")));
  });
}

TEST(Membership, AWorkerThatSaysSomethingElseIsNamedOnAll) {
  for_workers(2, [](int worker, const Membership& members) {
    EXPECT_THAT(message_of<Mismatch>([&] {
                  members.require_same("fit", worker == 0 ? "epochs: 3\n" : "epochs: 4\n");
                }),
                testing::AllOf(HasSubstr("fit: worker 1"), HasSubstr("worker 0 has epochs: 3"),
                               HasSubstr("worker 1 has epochs: 4")));
    const std::vector<std::byte> own(worker == 0 ? 8 : 16);
    EXPECT_THAT(message_of<Mismatch>([&] { members.exchange_alike("shares", own); }),
                HasSubstr(worker == 0 ? "shares: worker 1 has 16 bytes, this worker 8"
                                      : "shares: worker 0 has 8 bytes, this worker 16"));
  });
}

TEST(Membership, WhoDoesNotComeIsNamedToAllOthers) {
  std::latch ended(2);
  for_workers(
      3,
      [&](int worker, const Membership& members) {
        if (worker == 2) return ended.wait();
        EXPECT_THAT(message_of<Timeout>([&] { members.all_of(worker); }), HasSubstr("rank 2"));
        ended.count_down();
      },
      Millis{200});
}

TEST(Membership, AFailureOfOneEndsAll) {
  for_workers(2, [](int worker, const Membership& members) {
    if (worker == 1)
      EXPECT_EQ(message_of<Error>([&] { members.agree_on_failure(error("disk is full"), "save"); }),
                "disk is full");
    else
      EXPECT_THAT(message_of<FailedElsewhere>([&] { members.agree_on_failure(nullptr, "save"); }),
                  HasSubstr("save: failed on another worker"));
    members.agree_on_failure(nullptr, "load");  // and both go on
  });
}

}  // namespace
}  // namespace tutti
