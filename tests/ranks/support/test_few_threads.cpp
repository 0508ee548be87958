// Threads that cannot start: an error that names the limit, and what has started ends.
#include <atomic>

#include "tutti/base/threads.h"

#include "tests/support/expect.h"
#include "tests/support/few_threads.h"
#include "tests/support/run_ranks.h"

namespace tutti::test {
namespace {

RANK_PROGRAM(start_one_too_many) {
  allow_threads(0);
  start_thread("replica 1", [] {}).join();
}

TEST(FewThreads, TheErrorNamesTheLimitAndHowManyThereAre) {
  const auto out = run_ranks(1, "start_one_too_many")[0];
  EXPECT_EQ(out.error_class, "Error") << out.log;
  EXPECT_THAT(
      out.error,
      AllOf(HasSubstr("no thread for replica 1 can be started"), HasSubstr("ulimit -u allows "),
            HasSubstr(" threads of a user, and user "), HasSubstr("of this process are ")));
}

RANK_PROGRAM(start_five_at_once) {
  allow_threads(2);
  std::atomic<int> called{0};
  try {
    at_once(5, "each of five", [&](int) { ++called; });
  } catch (const Error&) {
    rank.mark("called " + std::to_string(called));
    throw;
  }
}

// Two have started, and wait for the others.
TEST(FewThreads, AtOnceAllAreCalledOrNone) {
  const auto out = run_ranks(1, "start_five_at_once")[0];
  EXPECT_THAT(out.error, HasSubstr("no thread for each of five can be started"));
  EXPECT_THAT(out.log, HasSubstr("called 0"));
  std::atomic<int> sum{0};
  at_once(5, "each of five", [&](int number) { sum += number; });
  EXPECT_EQ(sum, 10);
}

TEST(FewThreads, AtOnceTheLowestErrorIsThrown) {
  EXPECT_THAT(
      [] {
        at_once(4, "each of four", [](int number) {
          if (number % 2 == 1) throw Error("of " + std::to_string(number));
        });
      },
      ThrowsMessage<Error>("of 1"));
}

}  // namespace
}  // namespace tutti::test
