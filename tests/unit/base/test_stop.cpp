// The stop flag: the first signal sets it, what was there before comes back.
#include <csignal>

#include "tutti/base/stop.h"

#include "tests/support/expect.h"

namespace tutti {
namespace {

TEST(Stop, ASignalSetsTheFlagAndInterruptsBetweenSteps) {
  install_stop_handler();
  install_stop_handler();
  EXPECT_EQ(stop_requested(), 0);
  EXPECT_NO_THROW(throw_if_stop_requested("fit"));
  std::raise(SIGTERM);
  EXPECT_EQ(stop_requested(), SIGTERM);
  try {
    throw_if_stop_requested("fit");
    FAIL() << "no Interrupted";
  } catch (const Interrupted& error) {
    EXPECT_EQ(error.signal(), SIGTERM);
    EXPECT_THAT(error.what(), HasSubstr("fit: ended in order after SIGTERM"));
  }
  remove_stop_handler();
  EXPECT_EQ(stop_requested(), 0);
}

TEST(Stop, ASecondSignalEndsAtOnce) {
  EXPECT_EXIT(
      {
        install_stop_handler();
        std::raise(SIGINT);
        std::raise(SIGTERM);
      },
      testing::ExitedWithCode(128 + SIGTERM), "");
}

TEST(Stop, AnIgnoredSignalStaysIgnored) {
  std::signal(SIGINT, SIG_IGN);
  install_stop_handler();
  std::raise(SIGINT);
  EXPECT_EQ(stop_requested(), 0);
  remove_stop_handler();
  EXPECT_EQ(std::signal(SIGINT, SIG_DFL), SIG_IGN) << "and is so afterwards";
}

}  // namespace
}  // namespace tutti
