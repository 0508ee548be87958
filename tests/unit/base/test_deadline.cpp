#include <gtest/gtest.h>

#include "tutti/base/deadline.h"

namespace tutti {
namespace {

TEST(Deadline, TheLongestLimitDoesNotPassAtOnce) {
  const Deadline deadline(Millis::max());
  EXPECT_FALSE(deadline.passed());
  EXPECT_GT(deadline.left(), kLongestLimit / 2);
  EXPECT_EQ(deadline.limit(), Millis::max()) << "as it was given, for messages";
  EXPECT_GT(time_after(Millis::max()), Clock::now());
}

TEST(Deadline, ANegativeLimitHasPassed) {
  for (const Millis limit : {Millis::min(), Millis{-1}, Millis{0}}) {
    EXPECT_TRUE(Deadline(limit).passed());
    EXPECT_EQ(Deadline(limit).left(), Millis{0});
  }
}

}  // namespace
}  // namespace tutti
