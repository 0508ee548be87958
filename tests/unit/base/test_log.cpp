// The log: levels, prefix, one line a message, and log_once.
#include <string>
#include <thread>

#include "tutti/base/log.h"

#include "tests/support/expect.h"

namespace tutti {
namespace {

TEST(Log, ReadsLevelsByName) {
  for (LogLevel level : {LogLevel::trace, LogLevel::debug, LogLevel::info, LogLevel::warning,
                         LogLevel::error, LogLevel::off}) {
    std::string warning = "old";
    EXPECT_EQ(parse_log_level(name_of(level), warning), level);
    EXPECT_EQ(warning, "");
  }
}

TEST(Log, AnUnknownLevelNamesTheNearest) {
  std::string warning;
  EXPECT_EQ(parse_log_level("warnign", warning), LogLevel::warning);
  EXPECT_THAT(warning, HasSubstr("TUTTI_LOG"));
  EXPECT_THAT(warning, HasSubstr("warnign"));
  EXPECT_THAT(warning, HasSubstr("did you mean \"warning\""));
}

TEST(Log, ThePrefixNamesWorkerAndRankOfTheThread) {
  EXPECT_EQ(log_prefix(), "");
  set_log_worker(1, 4);
  EXPECT_EQ(log_prefix(), "worker 1 of 4: ");
  std::thread([] {
    set_log_rank(3);
    EXPECT_EQ(log_prefix(), "worker 1 of 4, rank 3: ");
  }).join();
  EXPECT_EQ(log_prefix(), "worker 1 of 4: ") << "a rank belongs to its thread";
  set_log_worker(0, 1);
}

TEST(Log, WritesEnabledLinesToStderrOnly) {
  const LogLevel before = log_level();
  set_log_level(LogLevel::info);
  set_log_rank(2);
  testing::internal::CaptureStderr();
  log(LogLevel::info, "{} replicas on {} cores", 3, 2);
  log(LogLevel::debug, "hidden");
  log(LogLevel::error, "braces {{}} in %v text: {}", "{}");
  const std::string text = testing::internal::GetCapturedStderr();
  set_log_rank(-1);
  set_log_level(before);
  EXPECT_THAT(text, HasSubstr("tutti info: rank 2: 3 replicas on 2 cores\n"));
  EXPECT_THAT(text, HasSubstr("error: rank 2: braces {} in %v text: {}\n"));
  EXPECT_THAT(text, Not(HasSubstr("hidden")));
}

TEST(Log, OnceIsOncePerKey) {
  testing::internal::CaptureStderr();
  EXPECT_TRUE(log_once("test.a", LogLevel::error, "first {}", 1));
  EXPECT_FALSE(log_once("test.a", LogLevel::error, "again {}", 2));
  EXPECT_TRUE(log_once("test.b", LogLevel::error, "other"));
  const std::string text = testing::internal::GetCapturedStderr();
  EXPECT_THAT(text, HasSubstr("first 1"));
  EXPECT_THAT(text, Not(HasSubstr("again")));
  EXPECT_THAT(text, EndsWith("other\n"));
}

TEST(Log, OffIsSilent) {
  const LogLevel before = log_level();
  set_log_level(LogLevel::off);
  testing::internal::CaptureStderr();
  log(LogLevel::error, "nothing");
  log_message(LogLevel::off, "nothing");
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
  set_log_level(before);
}

}  // namespace
}  // namespace tutti
