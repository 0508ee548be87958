// DiskThread: in order, told to its owner, and kept by no disk.
#include <atomic>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include "tutti/store/disk_thread.h"

#include "tests/support/expect.h"

namespace tutti::store {
namespace {

const Deadline in_a_minute() { return Deadline(Millis{60'000}); }

/// A disk that answers no sooner than it is let go.
struct Hung {
  void wait() const { until.wait(); }
  void let_go() { gone.set_value(); }

  std::promise<void> gone;
  std::shared_future<void> until = gone.get_future().share();
};

TEST(DiskThread, WorkIsDoneInOrderAndItsOwnerHearsOfIt) {
  std::atomic<int> woken = 0;
  std::vector<int> done, told;
  DiskThread disk("a test", [&] { ++woken; });
  for (int i = 0; i < 3; ++i)
    disk.add_with_then([&, i]() -> DiskThread::Then {
      done.push_back(i);
      return [&, i] { told.push_back(i); };
    });
  disk.add([&] { done.push_back(3); });
  ASSERT_TRUE(disk.wait(in_a_minute()));
  EXPECT_THAT(done, ElementsAre(0, 1, 2, 3));
  EXPECT_EQ(woken, 3) << "of the last there is nothing to tell";
  EXPECT_TRUE(told.empty());
  EXPECT_TRUE(disk.process());
  EXPECT_THAT(told, ElementsAre(0, 1, 2));
  EXPECT_FALSE(disk.process());
}

TEST(DiskThread, WhatWorkThrowsIsThrownOnceAllIsTold) {
  bool told = false;
  DiskThread disk("a test");
  disk.add([] { throw Error("the first"); });
  disk.add([] { throw Error("the second"); });
  disk.add_with_then([&]() -> DiskThread::Then { return [&] { told = true; }; });
  ASSERT_TRUE(disk.wait(in_a_minute()));
  EXPECT_EQ(message_of<Error>([&] { disk.process(); }), "the first");
  EXPECT_TRUE(told);
}

TEST(DiskThread, WhoWaitsForADiskThatHangsWaitsNoLongerThanItWants) {
  const auto hung = std::make_shared<Hung>();
  const auto owned = std::make_shared<int>(0);
  const std::weak_ptr<int> waiting = owned;
  {
    DiskThread disk("a test");
    disk.add([hung] { hung->wait(); });
    disk.add([owned] { ++*owned; });
    EXPECT_FALSE(disk.wait(Deadline(Millis{1})));
    EXPECT_EQ(waiting.use_count(), 2);
    disk.forget_waiting();
    EXPECT_EQ(waiting.use_count(), 1) << "it had not begun";
    disk.add([owned] { ++*owned; });
  }  // waits for nothing
  EXPECT_EQ(waiting.use_count(), 1) << "it was given up";
  EXPECT_EQ(*owned, 0);
  hung->let_go();
}

TEST(DiskThread, OneThatDoesNotAnswerIsNamed) {
  const auto hung = std::make_shared<Hung>();
  EXPECT_THAT(
      message_of<Timeout>([&] { wait_for_disk("--out d", [hung] { hung->wait(); }, Millis{20}); }),
      AllOf(HasSubstr("--out d"), HasSubstr("the disk did not answer")));
  hung->let_go();
  EXPECT_THAT(message_of<Error>(
                  [] { wait_for_disk("--out d", [] { throw Error("full"); }, Millis{60'000}); }),
              HasSubstr("full"));
}

}  // namespace
}  // namespace tutti::store
