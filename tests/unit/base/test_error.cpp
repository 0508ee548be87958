#include <cerrno>
#include <csignal>
#include <string>

#include "tutti/base/deadline.h"
#include "tutti/base/detail/check.h"

#include "tests/support/expect.h"

namespace tutti {
namespace {

TEST(Error, EveryClassIsAnErrorAndKeepsItsText) {
  const auto text_of = [](auto error) {
    try {
      throw error;
    } catch (const Error& caught) {
      return std::string(caught.what());
    }
  };
  EXPECT_EQ(text_of(UsageError("usage")), "usage");
  EXPECT_EQ(text_of(PeerLost("lost")), "lost");
  EXPECT_EQ(text_of(Timeout("late")), "late");
  EXPECT_EQ(text_of(Mismatch("unlike")), "unlike");
  EXPECT_EQ(text_of(DataError("damaged")), "damaged");
  EXPECT_EQ(text_of(Interrupted(SIGTERM, "ended")), "ended");
  EXPECT_EQ(Interrupted(SIGTERM, "").signal(), SIGTERM);
}

TEST(Error, FailedCheckSaysWhereWhatAndTheValues) {
  const int slot = 7, size = 4;
  EXPECT_THAT(message_of<Error>([&] { TUTTI_CHECK(slot < size, "slot {} of {}", slot, size); }),
              AllOf(HasSubstr("test_error.cpp:"), HasSubstr("slot < size"),
                    HasSubstr("slot 7 of 4"), HasSubstr("report")));
}

TEST(Error, PassedCheckEvaluatesOnceAndFormatsNothing) {
  int evaluated = 0, formatted = 0;
  TUTTI_CHECK(++evaluated == 1, "{}", ++formatted);
  EXPECT_EQ(evaluated, 1);
  EXPECT_EQ(formatted, 0);
}

TEST(Error, ErrnoHasWordsAndNumber) {
  EXPECT_EQ(errno_words(ENOENT), "No such file or directory (errno 2)");
  EXPECT_THAT(errno_words(123456), HasSubstr("123456"));
}

TEST(Error, PlainWordsLeaveOutLibTorchsStackTrace) {
  EXPECT_EQ(plain_words("Expected more than 1 value\nException raised from batch_norm at "
                        "/torch/Normalization.cpp:17 (most recent call first):\nframe #0: ..."),
            "Expected more than 1 value");
  EXPECT_EQ(plain_words("two\n  lines\n"), "two\n  lines");
  EXPECT_EQ(plain_words("Exception raised from nobody"), "Exception raised from nobody");
  EXPECT_EQ(plain_words(""), "");
}

TEST(Deadline, CountsDownToZeroAndNotBelow) {
  const Deadline past(Millis{-5});
  EXPECT_TRUE(past.passed());
  EXPECT_EQ(past.left(), Millis{0});
  const Deadline now(Millis{0});
  EXPECT_TRUE(now.passed());
  EXPECT_EQ(now.left(), Millis{0});

  const TimePoint before = Clock::now();
  const Deadline hour(Millis{3'600'000});
  EXPECT_FALSE(hour.passed());
  EXPECT_EQ(hour.limit(), Millis{3'600'000});
  EXPECT_GE(hour.at(), before + Millis{3'600'000});
  EXPECT_LE(hour.left(), Millis{3'600'000});
  EXPECT_GT(hour.left(), Millis{3'500'000});
}

TEST(Deadline, RoundsUpSoThatPollDoesNotSpin) {
  const Deadline soon(Millis{2});
  while (!soon.passed()) {
    const bool nothing_left = soon.left() == Millis{0};
    EXPECT_TRUE(!nothing_left || soon.passed());
  }
  EXPECT_EQ(soon.left(), Millis{0});
}

}  // namespace
}  // namespace tutti
