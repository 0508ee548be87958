// The thread that moves sums while its replica computes: what it has begun, gives back and throws.
#include <atomic>
#include <thread>

#include "tutti/sync/detail/sum_mover.h"

#include "tests/support/comm.h"
#include "tests/support/expect.h"

namespace tutti::detail {
namespace {

using test::make_tcp_members;
using test::run_all_members;

constexpr Millis kMoverLimit{20'000};

SumMover::Sum sum_of(Group group, std::span<float> data) {
  return {.start = [group, data](Millis limit) mutable {
    return group.all_reduce(span_of(data), ReduceOp::sum, limit);
  }};
}

// Over links that count bytes, two of each pair.
TEST(SumMover, AddsWhatWasPutWhileItsOwnerIsElsewhere) {
  run_all_members(make_tcp_members(2, {}, 2, test::Wire::loopback), [](Group group) {
    SumMover mover(group);
    for (int step = 0; step < 3; ++step) {
      std::vector<float> a(500'000, 1.0F + static_cast<float>(group.rank())), b(7, 2.0F);
      mover.put(sum_of(group, a));
      mover.put(sum_of(group, b));
      std::vector<float> c(3, 1.0F);
      EXPECT_THROW((void)group.all_reduce(span_of(std::span(c)), ReduceOp::sum), UsageError);
      EXPECT_THROW(group.barrier(), UsageError);
      std::vector<Work> works = mover.take_back(kMoverLimit);  // the engine is its owner's again
      works.push_back(group.all_reduce(span_of(std::span(c)), ReduceOp::sum));
      for (Work& work : works) work.wait();
      EXPECT_THAT(a, Each(3.0F));
      EXPECT_THAT(b, Each(4.0F));
      EXPECT_THAT(c, Each(2.0F));
    }
    EXPECT_TRUE(mover.take_back(kMoverLimit).empty());
  });
}

// Others may compute for longer than the limit; what they keep who has computed waiting counts.
TEST(SumMover, CountsTheLimitFromWhereItsOwnerWaits) {
  for (const bool comes : {true, false}) {
    const auto members = make_tcp_members(2);
    std::atomic<bool> over{false};
    std::atomic<int> looks{0};
    const auto words = test::errors_of(members, [&](Group group) {
      std::vector<float> a(10, 1.0F), b(10, 1.0F);
      if (group.rank() == 1) {
        std::this_thread::sleep_for(Millis{400});  // longer than the limit of the group
        if (comes) {
          for (auto* one : {&a, &b}) group.all_reduce_now(span_of(std::span(*one)), ReduceOp::sum);
          return;
        }
        while (!over) std::this_thread::sleep_for(Millis{1});
        return;
      }
      const std::shared_ptr<void> at_end(nullptr, [&](void*) { over = true; });
      group.engine().set_idle([&] { ++looks; });
      group.set_time_limit(Millis{100});
      SumMover mover(group);
      mover.put(sum_of(group, a));
      std::this_thread::sleep_for(Millis{150});  // longer than the limit, under way
      mover.put(sum_of(group, b));
      mover.drain(comes ? kMoverLimit : Millis{200});
      EXPECT_TRUE(comes);
      EXPECT_THAT(a, Each(2.0F));
    });
    if (comes) {
      EXPECT_THAT(words, Each(""));
    } else {
      EXPECT_GT(looks, 0);
      EXPECT_THAT(words[0],
                  AllOf(HasSubstr("Timeout"), HasSubstr("not done within its limit of 200 ms"),
                        HasSubstr("rank 1")));
    }
  }
}

// What is under way when its owner comes is its owner's, as the rest is: nobody waits for it first.
TEST(SumMover, GivesBackWhatIsNotDone) {
  std::atomic<bool> has_it_back{false};
  for (const int lanes : {1, 2})
    run_all_members(make_tcp_members(2, {}, 1, test::Wire::unix_pair, lanes), [&](Group group) {
      std::vector<float> all(3, 1.0F);
      const auto piece = [&](size_t i) { return std::span(all).subspan(i, 1); };
      if (group.rank() == 1) {
        while (!has_it_back) std::this_thread::sleep_for(Millis{1});
        for (const size_t i : {0, 1, 2}) group.all_reduce_now(span_of(piece(i)), ReduceOp::sum);
        return;
      }
      SumMover mover(group);
      for (const size_t i : {0, 1, 2}) mover.put(sum_of(group, piece(i)));
      std::vector<Work> left = mover.take_back(kMoverLimit);
      has_it_back = true;
      EXPECT_THAT(left, SizeIs(3));
      for (Work& work : left) work.wait(kMoverLimit);
      EXPECT_THAT(all, Each(2.0F));
      has_it_back = false;
    });
}

// Whether its mover has begun or not.
TEST(SumMover, WhatIsToFollowASumDoesBeforeItIsBack) {
  for (const int lanes : {1, 2})
    run_all_members(make_tcp_members(2, {}, 1, test::Wire::unix_pair, lanes), [&](Group group) {
      SumMover mover(group);
      for (int step = 0; step < 20; ++step) {
        std::vector<float> a(10, 1.0F), b(10, 1.0F);
        std::atomic<bool> followed{false};
        mover.put(sum_of(group, a));
        SumMover::Sum second = sum_of(group, b);
        second.then = [&] { followed = true; };
        mover.put(std::move(second));
        if (step % 2 == 0) std::this_thread::yield();
        EXPECT_THAT(mover.take_back(kMoverLimit), SizeIs(0));
        EXPECT_TRUE(followed);
        EXPECT_THAT(b, Each(2.0F));
      }
    });
}

TEST(SumMover, ThrowsWhatEndedTheGroupThenAndEverAfter) {
  const auto members = make_tcp_members(2);
  const auto words = test::errors_of(members, [](Group group) {
    std::vector<float> a(10, 1.0F);
    if (group.rank() == 1) return group.abort("as the test has it");
    SumMover mover(group);
    const auto until_it_has_begun = [&] {
      while (true) {
        mover.put(sum_of(group, a));
        std::this_thread::sleep_for(Millis{1});
        for (Work& work : mover.take_back(kMoverLimit)) work.wait();
      }
    };
    EXPECT_THROW(until_it_has_begun(), PeerLost);
    mover.put(sum_of(group, a));
    mover.take_back(kMoverLimit);
  });
  EXPECT_THAT(words,
              ElementsAre(AllOf(HasSubstr("PeerLost"), HasSubstr("as the test has it")), ""));
}

TEST(SumMover, GivenUpInTheMiddleOfAStepEndsTheGroupForAll) {
  const auto members = make_tcp_members(2);
  std::atomic<bool> gone{false};
  const auto words = test::errors_of(members, [&](Group group) {
    std::vector<float> a(10, 1.0F);
    if (group.rank() == 0) {
      SumMover(group).put(sum_of(group, a));
      gone = true;
      return;
    }
    while (!gone) std::this_thread::sleep_for(Millis{1});
    // What was under way may have come here whole; nothing follows it.
    for (int i = 0; i < 2; ++i) group.all_reduce_now(span_of(std::span(a)), ReduceOp::sum);
  });
  EXPECT_THAT(words[1], HasSubstr("PeerLost"));
}

}  // namespace
}  // namespace tutti::detail
