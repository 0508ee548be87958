// Checks of flag values, figures from step times, and programs that run beside this one.
#include <gmock/gmock.h>

#include "tutti/base/error.h"
#include "tutti/cli/arguments.h"
#include "tutti/cli/bench/child.h"
#include "tutti/cli/bench/runs.h"
#include "tutti/cli/bench/timing.h"
#include "tutti/cli/checks.h"

#include "tests/support/message_of.h"

namespace tutti::cli {
namespace {

using test::message_of;
using testing::ElementsAre;
using testing::HasSubstr;

TEST(Checks, NumbersNameWhatWasGotAndTheRange) {
  const struct {
    Check check;
    const char* text;
    bool good;
  } cases[] = {
      {whole_number(1, 10), "1", true},      {whole_number(1, 10), "10", true},
      {whole_number(1, 10), "0", false},     {whole_number(1, 10), "11", false},
      {whole_number(1, 10), "-3", false},    {whole_number(1, 10), "2.5", false},
      {whole_number(1, 10), "1e1", false},   {whole_number(1, 10), "", false},
      {whole_number(1, 10), "7x", false},    {whole_number(1, 10), "99999999999999999999", false},
      {positive_number(1e38), "1e-3", true}, {positive_number(1e38), "0", false},
      {positive_number(1e38), "-1", false},  {positive_number(1e38), "nan", false},
      {positive_number(1e38), "inf", false}, {positive_number(1e38), "1e39", false},
      {number_between(0, 2), "0", true},     {number_between(0, 2), "2.1", false},
  };
  for (const auto& c : cases) {
    std::string text = c.text;
    const std::string answer = c.check(text);
    EXPECT_EQ(answer.empty(), c.good) << c.text;
    if (!c.good) {
      EXPECT_THAT(answer, HasSubstr("got \"" + text + "\"; expected")) << c.text;
    }
  }
}

TEST(Checks, DevicesAreReadWhateverThereIs) {
  const auto check = device_words();
  for (std::string good : {"cpu", "cuda", "auto", "cuda:7x2,cpu"}) EXPECT_EQ(check(good), "");
  std::string wrong = "cuda:0,0";
  EXPECT_EQ(check(wrong), "cuda:0 is named twice; cuda:0x2 is two replicas on it");
}

TEST(Checks, AFailureIsPrintedWithoutLibTorchsStackTrace) {
  testing::internal::CaptureStderr();
  const int code = guarded(
      [] { return "tutti train"; },
      []() -> int { throw std::runtime_error("bad shape\nException raised from f at x.cpp"); });
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "tutti train: bad shape\n");
  EXPECT_EQ(code, 1);
}

TEST(Checks, WordsOfLaterVersionsAreToldApart) {
  const auto check = one_of("strategy", {"mirrored", "one_device"}, {"tpu"});
  std::string known = "mirrored", near = "mirored", later = "tpu";
  EXPECT_EQ(check(known), "");
  EXPECT_THAT(check(near), HasSubstr("did you mean \"mirrored\"?"));
  EXPECT_THAT(check(later), HasSubstr("not in this version"));
}

// Programs are compiled to them, and run.
TEST(Checks, AWordThatWasRenamedIsTakenAndToldOf) {
  Command command;
  std::string order;
  command.add("--order", "ORDER", &order,
              renamed_word("--order", "shape", "fixed", one_of("order", {"any", "fixed"})), "");
  testing::internal::CaptureStderr();
  parse(command, {"--order", "shape"});
  EXPECT_EQ(order, "fixed");
  EXPECT_EQ(testing::internal::GetCapturedStderr(),
            "tutti: --order shape is --order fixed now; shape goes with the next release\n");
}

TEST(Checks, ListsOfSizesAndNumbers) {
  EXPECT_THAT(parse_sizes("--bytes", "8,1K,64M,0,1G"),
              ElementsAre(8, 1024, 64 << 20, 0, int64_t{1} << 30));
  EXPECT_THAT(parse_numbers("--replicas", "1,2,4", 1, 4), ElementsAre(1, 2, 4));
  for (const char* wrong : {"", "8,", "8,,9", "1KB", "-8", "K", "1.5K", "9999G"})
    EXPECT_THAT(message_of<UsageError>([&] { parse_sizes("--bytes", wrong); }),
                HasSubstr("--bytes"))
        << wrong;
  EXPECT_THAT(message_of<UsageError>([] { parse_numbers("--replicas", "1,5", 1, 4); }),
              HasSubstr("1 to 4"));
}

TEST(Timing, QuantilesInterpolate) {
  EXPECT_EQ(quantile({}, 0.5), 0);
  EXPECT_EQ(quantile({3}, 0.99), 3);
  EXPECT_EQ(median({4, 1, 3}), 3);
  EXPECT_EQ(median({4, 1, 3, 2}), 2.5);
  EXPECT_EQ(quantile({0, 10}, 0.25), 2.5);
  EXPECT_EQ(quantile({5, 1, 2}, 1), 5);
}

TEST(BenchRuns, FindsTheLineOfJson) {
  EXPECT_EQ(json_in("worker 0 pid 7\n[0] a table\n[0] {\"a\": 1}\n").at("a"), 1);
  EXPECT_THAT(message_of<Error>([] { json_in("nothing\n"); }), HasSubstr("nothing"));
}

TEST(Child, SaysHearsAndEnds) {
  Child echo({"cat"}, {"TUTTI_TEST=1"});
  echo.say("one");
  EXPECT_EQ(echo.hear(Millis{10'000}), "one");
  echo.say("two");
  EXPECT_EQ(echo.finish(Millis{10'000}), "two\n");
  EXPECT_EQ(Child({"sh", "-c", "echo $TUTTI_TEST"}, {"TUTTI_TEST=1"}).finish(Millis{10'000}),
            "1\n");
}

TEST(Child, FailuresCarryWhatItSaidLast) {
  EXPECT_THAT(message_of<Error>(
                  [] { Child({"sh", "-c", "echo oh dear >&2; exit 3"}).hear(Millis{10'000}); }),
              testing::AllOf(HasSubstr("exited with code 3"), HasSubstr("oh dear")));
  EXPECT_THAT(message_of<Error>([] { Child({"sh", "-c", "kill -9 $$"}).finish(Millis{10'000}); }),
              HasSubstr("was killed by SIGKILL"));
  EXPECT_THAT(message_of<Error>([] { Child({"/not/there"}); }), HasSubstr("cannot be started"));
  EXPECT_THAT(message_of<Timeout>([] { Child({"sleep", "60"}).hear(Millis{20}); }),
              HasSubstr("sleep"));
}

}  // namespace
}  // namespace tutti::cli
