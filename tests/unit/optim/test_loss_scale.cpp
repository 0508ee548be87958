// The scale of losses: what PyTorch's GradScaler does, step by step.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>

#include "tutti/base/error.h"
#include "tutti/optim/loss_scale.h"

#include "tests/support/message_of.h"

namespace tutti::optim {
namespace {

using testing::HasSubstr;

// Steps as a word: "." good, "x" one that overflowed.
double after(const std::string& steps, const LossScaling& options) {
  LossScale scale(options);
  for (const char step : steps) scale.update(step == 'x');
  return scale.value();
}

TEST(LossScale, GrowsAfterGoodStepsInARowAndFallsAtOnce) {
  const LossScaling three{.initial = 1024, .growth_interval = 3};
  const struct {
    const char* steps;
    double value;
    const char* why;
  } cases[] = {
      {"", 1024, "nothing yet"},
      {"..", 1024, "two of three"},
      {"...", 2048, "three of three"},
      {"......", 4096, "twice"},
      {"x", 512, "at once"},
      {"xx", 256, "each time"},
      {"..x..", 512, "an overflow ends the row"},
      {"..x...", 1024, "three after it"},
      {"...x", 1024, "grown, then fallen"},
      {"x...", 1024, "the other way round"},
  };
  for (const auto& c : cases) EXPECT_EQ(after(c.steps, three), c.value) << c.steps << ": " << c.why;
  EXPECT_EQ(after("...x", {.initial = 8, .growth = 4, .growth_interval = 3, .backoff = 0.25}), 8);
}

TEST(LossScale, HasTheNumbersOfPyTorch) {
  LossScale scale;
  EXPECT_EQ(scale.value(), 65'536);
  for (int step = 0; step < 1999; ++step) scale.update(false);
  EXPECT_EQ(scale.value(), 65'536);
  EXPECT_EQ(scale.good_steps(), 1999);
  scale.update(false);
  EXPECT_EQ(scale.value(), 131'072);
  EXPECT_EQ(scale.good_steps(), 0);
  scale.update(true);
  EXPECT_EQ(scale.value(), 65'536);
  EXPECT_EQ(scale.skipped(), 1);
}

TEST(LossScale, StaysWithinFloat32) {
  const double largest = std::numeric_limits<float>::max();
  EXPECT_EQ(after(".", {.initial = largest, .growth_interval = 1}), largest);
  EXPECT_EQ(after(std::string(200, '.'), {.initial = 1, .growth_interval = 1}), 0x1p127);
}

// As devices keep it: in another number of digits their scales would drift from the host's.
TEST(LossScale, IsAFloat32AfterEachChange) {
  EXPECT_EQ(after("", {.initial = 0.1}), 0.1F);
  EXPECT_EQ(after("x", {.initial = 0.1, .backoff = 0.3}), static_cast<float>(0.1F * 0.3));
  EXPECT_EQ(after(".", {.initial = 0.1, .growth = 1.7, .growth_interval = 1}),
            static_cast<float>(0.1F * 1.7));
}

TEST(LossScale, SaysWhenItIsNotTheScale) {
  LossScale scale({.initial = 1});
  for (int step = 0; step < 16; ++step) scale.update(true);
  EXPECT_EQ(scale.value(), 0x1p-16);
  EXPECT_THAT(test::message_of<Error>([&] { scale.update(true); }), HasSubstr("not finite"));
}

TEST(LossScale, RefusesOptionsOutOfRange) {
  const double infinite = std::numeric_limits<double>::infinity();
  const struct {
    LossScaling options;
    const char* field;
  } cases[] = {
      {{.initial = 0}, "initial is 0"},
      {{.initial = infinite}, "initial is inf"},
      {{.growth = 1}, "growth is 1"},
      {{.growth = infinite}, "growth is inf"},
      {{.growth_interval = 0}, "growth_interval is 0"},
      {{.backoff = 0}, "backoff is 0"},
      {{.backoff = 1}, "backoff is 1"},
  };
  for (const auto& c : cases)
    EXPECT_THAT(test::message_of<UsageError>([&] { LossScale{c.options}; }), HasSubstr(c.field));
}

}  // namespace
}  // namespace tutti::optim
