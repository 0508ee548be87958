// Calls of many threads that are answered in passes: which of them, by whom, and how they end.
#include <atomic>
#include <latch>
#include <numeric>
#include <semaphore>

#include "tutti/base/joined_calls.h"

#include "tests/support/expect.h"

namespace tutti {
namespace {

using std::chrono::microseconds;

constexpr Millis kOfCalls{60'000};

struct Square : JoinedCall {
  explicit Square(int64_t of) : number(of) {}
  int64_t number, square = 0;
};

Square& square_of(const std::shared_ptr<JoinedCall>& call) { return static_cast<Square&>(*call); }

void answer_all(std::span<const std::shared_ptr<JoinedCall>> pass) {
  for (const auto& call : pass)
    square_of(call).square = square_of(call).number * square_of(call).number;
}

int64_t ask(JoinedCalls& calls, int64_t number, int64_t units = 1, Millis limit = kOfCalls) {
  const auto call = std::make_shared<Square>(number);
  calls.ask(call, units, Deadline(limit));
  return call->square;
}

TEST(GatherCalls, GoesWhenAPassIsFullOrTheFirstHasWaited) {
  const TimePoint zero{};
  struct Case {
    const char* name;
    std::vector<std::pair<int64_t, int>> waiting;  // units, came at so many us
    int64_t most;
    int wait_us, now_us;
    size_t calls;
  };
  const Case cases[] = {
      {"one that has just come waits", {{1, 0}}, 4, 10, 0, 0},
      {"for so long and no longer", {{1, 0}}, 4, 10, 10, 1},
      {"not at all", {{1, 0}}, 4, 0, 0, 1},
      {"the first says for how long", {{1, 0}, {1, 9}}, 4, 10, 10, 2},
      {"a full pass goes at once", {{1, 0}, {1, 0}, {2, 0}}, 4, 10, 0, 3},
      {"what does not fit makes it full", {{3, 0}, {2, 0}, {1, 0}}, 4, 10, 0, 1},
      {"order is kept", {{1, 0}, {4, 0}, {1, 0}}, 4, 10, 0, 1},
      {"the rest waits for the next", {{2, 0}, {2, 0}, {2, 0}}, 4, 10, 0, 2},
      {"larger than a pass is one", {{9, 0}, {1, 0}}, 4, 10, 0, 1},
      {"nothing is no reason to wait", {{0, 0}, {0, 0}}, 4, 0, 0, 2},
  };
  for (const Case& at : cases) {
    std::deque<WaitingCall> waiting;
    for (const auto& [units, came] : at.waiting)
      waiting.push_back({units, zero + microseconds(came)});
    const Gathered got =
        gather(waiting, {at.most, microseconds(at.wait_us)}, zero + microseconds(at.now_us));
    EXPECT_EQ(got.calls, at.calls) << at.name;
    EXPECT_EQ(got.until, zero + microseconds(at.wait_us)) << at.name;
  }
  const std::deque<WaitingCall> one{{1, zero}};
  EXPECT_EQ(gather(one, {2, microseconds::max()}, zero).calls, 0u) << "for ever is a long time";
  EXPECT_GT(gather(one, {2, microseconds::max()}, zero).until, zero);
}

TEST(JoinedCalls, EachOfManyThreadsGetsItsOwnAnswer) {
  constexpr int kThreads = 8, kCalls = 200;
  JoinedCalls calls("test", {.max_units = 4, .max_wait = microseconds(50)}, [](auto pass) {
    EXPECT_LE(pass.size(), 4u);
    answer_all(pass);
  });
  std::atomic<int> wrong = 0;
  std::vector<std::jthread> threads;
  for (int t = 0; t < kThreads; ++t)
    threads.emplace_back([&, t] {
      for (int64_t i = 0; i < kCalls; ++i) {
        const int64_t number = t * kCalls + i;
        if (ask(calls, number) != number * number) ++wrong;
      }
    });
  threads.clear();
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(calls.counts().calls, kThreads * kCalls);
  EXPECT_EQ(calls.counts().units, kThreads * kCalls);
  EXPECT_GE(calls.counts().passes, kThreads * kCalls / 4);
}

TEST(JoinedCalls, AFullPassWaitsForNobody) {
  constexpr int kThreads = 4;
  JoinedCalls calls("test", {.max_units = 2 * kThreads, .max_wait = microseconds::max()},
                    answer_all);
  std::vector<std::jthread> threads;
  for (int t = 0; t < kThreads; ++t) threads.emplace_back([&, t] { ask(calls, t, 2); });
  threads.clear();  // else they would wait for ever
  EXPECT_EQ(calls.counts().passes, 1);
  EXPECT_EQ(calls.counts().units, 2 * kThreads);
}

TEST(JoinedCalls, AnErrorOfOneIsItsOwn) {
  JoinedCalls calls("test", {.max_units = 3, .max_wait = microseconds::max()}, [](auto pass) {
    for (const auto& call : pass)
      if (square_of(call).number == 1) call->error = std::make_exception_ptr(DataError("number 1"));
    answer_all(pass);
  });
  std::vector<std::string> errors(3);
  std::vector<int64_t> squares(3);
  std::vector<std::jthread> threads;
  for (size_t t = 0; t < 3; ++t)
    threads.emplace_back([&, t] {
      errors[t] = refusal_of<DataError>([&] { squares[t] = ask(calls, static_cast<int64_t>(t)); });
    });
  threads.clear();
  EXPECT_THAT(errors, ElementsAre("", "number 1", ""));
  EXPECT_THAT(squares, ElementsAre(0, 0, 4));
}

TEST(JoinedCalls, WhatAPassThrowsAllOfItFailWith) {
  JoinedCalls calls("test", {.max_units = 2, .max_wait = microseconds::max()}, [](auto pass) {
    if (square_of(pass.front()).number != 5) throw DataError("all of it");
    answer_all(pass);
  });
  std::atomic<int> thrown = 0;
  std::vector<std::jthread> threads;
  for (int t = 0; t < 2; ++t)
    threads.emplace_back([&] {
      if (refusal_of<Error>([&] { ask(calls, 1); }) == "test: all of it") ++thrown;
    });
  threads.clear();
  EXPECT_EQ(thrown, 2);
  EXPECT_EQ(ask(calls, 5, 2), 25) << "the next pass is another one";
}

// A pass that answers when the test says so.
struct Held {
  std::counting_semaphore<> began{0}, go_on{0};
  JoinedCalls::Answer answer() {
    return [this](auto pass) {
      began.release();
      go_on.acquire();
      answer_all(pass);
    };
  }
};

TEST(JoinedCalls, WhoHasWaitedForItsLimitLeavesTheOthersAlone) {
  Held held;
  JoinedCalls calls("test", {.max_units = 1}, held.answer());
  int64_t answered = 0;
  std::jthread first([&] { answered = ask(calls, 3); });
  held.began.acquire();
  EXPECT_THAT(message_of<Timeout>([&] { ask(calls, 4, 1, Millis{1}); }),
              AllOf(HasSubstr("test: no answer in 1 ms"), HasSubstr("for a pass: 1")));
  held.go_on.release();
  first.join();
  EXPECT_EQ(answered, 9);
  held.go_on.release();
  EXPECT_EQ(ask(calls, 5), 25);
  EXPECT_EQ(calls.counts().calls, 2) << "what was given up is in no pass";
}

TEST(JoinedCalls, WhatAPassThrowsMayBeNoException) {
  JoinedCalls calls("test", {.max_units = 1}, [](auto pass) {
    if (square_of(pass.front()).number == 1) throw 42;
    answer_all(pass);
  });
  EXPECT_THAT(message_of<Error>([&] { ask(calls, 1); }), HasSubstr("is no std::exception"));
  EXPECT_EQ(ask(calls, 5), 25) << "the next pass is another one";
}

// What a pass reads may be on the stack of whoever asks.
TEST(JoinedCalls, OneWhosePassHasBegunWaitsForItsEnd) {
  constexpr Millis kShort{20};
  JoinedCalls calls("test", {.max_units = 1}, [&](auto pass) {
    std::this_thread::sleep_for(2 * kShort);  // beyond the limit, whenever the pass began
    answer_all(pass);
  });
  int64_t square = 0;
  do try {
      square = ask(calls, 5, 1, kShort);
    } catch (const Timeout&) {  // before its pass, as the test hopes
    }
  while (calls.counts().calls == 0);
  EXPECT_EQ(square, 25);
}

TEST(JoinedCalls, AnEndAnswersThePassUnderWayAndFailsWhatWaits) {
  Held held;
  std::optional<JoinedCalls> calls;
  calls.emplace("test", GatherLimits{.max_units = 1}, held.answer());
  JoinedCalls& all = *calls;
  int64_t answered = 0;
  std::string refused;
  std::jthread first([&] { answered = ask(*calls, 3); });
  held.began.acquire();
  std::jthread second([&] { refused = message_of<Error>([&] { ask(*calls, 4); }); });
  while (calls->counts().waiting == 0) std::this_thread::yield();
  std::jthread ends([&] { calls.reset(); });
  second.join();  // before the pass is over
  EXPECT_THAT(message_of<Error>([&] { ask(all, 5); }), HasSubstr("has ended"));
  held.go_on.release();
  ends.join();
  first.join();
  EXPECT_EQ(answered, 9);
  EXPECT_THAT(refused, HasSubstr("has ended while this call waited"));
}

TEST(JoinedCalls, RefuseLimitsOutOfRange) {
  const auto made = [](const GatherLimits& limits) {
    return message_of<UsageError>([&] { JoinedCalls("test", limits, answer_all); });
  };
  EXPECT_THAT(made({.max_units = 0}), HasSubstr("at most 0 in one pass, expected 1 or more"));
  EXPECT_THAT(made({.max_units = 1, .max_wait = microseconds(-1)}), HasSubstr("-1 us"));
}

}  // namespace
}  // namespace tutti
