// Measuring: figures of a subject whose times are known, because it says them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "tutti/base/error.h"
#include "tutti/plan/measure.h"

#include "tests/support/message_of.h"

namespace tutti::plan {
namespace {

using test::message_of;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// Each third step takes 1.2 times as long as the others; nothing is waited for.
struct Told {
  int calls = 0;
  double factor = 1.2;
  StepSeconds step(int64_t batch) {
    const double times = ++calls % 3 == 0 ? factor : 1;
    const auto b = static_cast<double>(batch);
    return {.input = 2e-6 * b,
            .forward = times * (1e-3 + 1e-5 * b),
            .backward = times * (2e-3 + 3e-5 * b),
            .update = 4e-4};
  }
  Subject subject() {
    return {"net", 10, 40, 20, 3, [this](int64_t batch) { return step(batch); }};
  }
};

MeasureOptions quick() {
  return {.name = "here", .batches = {4, 64}, .seconds = 1e-6, .least_steps = 60};
}

TEST(Measure, GivesWhatTheSubjectTakes) {
  Told told;
  std::vector<size_t> batches;
  MeasureOptions options = quick();
  options.progress = [&](size_t batch, size_t) { batches.push_back(batch); };
  const Machine machine = measure(told.subject(), options);
  EXPECT_NO_THROW(check(machine));
  EXPECT_THAT(batches, ElementsAre(0, 1));
  EXPECT_EQ(machine.model, "net");
  EXPECT_EQ(machine.bytes, 40);
  EXPECT_EQ(machine.largest_parameter, 20);
  EXPECT_EQ(machine.update_streams, 3);
  ASSERT_EQ(machine.compute.size(), 2);
  EXPECT_EQ(machine.compute[1].batch, 64);
  EXPECT_NEAR(machine.compute[1].forward, 1e-3 + 64e-5, 1e-12);
  EXPECT_NEAR(machine.compute[1].backward, 2e-3 + 3 * 64e-5, 1e-12);
  EXPECT_NEAR(machine.update, 4e-4, 1e-12);
  EXPECT_NEAR(machine.input * machine.cores, 2e-6, 1e-12);
  EXPECT_DOUBLE_EQ(machine.jitter.front(), 1);
  EXPECT_NEAR(machine.jitter.back(), 1.2, 1e-9);
  EXPECT_DOUBLE_EQ(machine.jitter[machine.jitter.size() / 2], 1);
  EXPECT_GT(machine.memory, 0);
  EXPECT_GT(machine.fixed_memory, 0);
}

TEST(Measure, TooNoisyIsSaidAndNotUsed) {
  Told told{.factor = 2};
  EXPECT_THAT(message_of<Error>([&] { measure(told.subject(), quick()); }),
              HasSubstr("steps of 4 samples take 3.16 ms in the middle, and the middle half of "
                        "them spreads over 100 % of that; 30 % is the most"));
}

TEST(Measure, WhatCannotBeIsRefused) {
  Told told;
  const auto message = [&](const MeasureOptions& options) {
    return message_of<UsageError>([&] { measure(told.subject(), options); });
  };
  MeasureOptions options = quick();
  options.batches = {};
  EXPECT_THAT(message(options), HasSubstr("batches: none"));
  options.batches = {8, 8};
  EXPECT_THAT(message(options), HasSubstr("batches: 8 after 8"));
  options = quick();
  options.seconds = 0;
  EXPECT_THAT(message(options), HasSubstr("0 s"));
  EXPECT_EQ(told.calls, 0);
}

TEST(MemoryRate, IsThatOfAMachine) {
  EXPECT_GT(memory_rate_of(1), 1e8);
  EXPECT_LT(memory_rate_of(1), 1e13);
}

}  // namespace
}  // namespace tutti::plan
