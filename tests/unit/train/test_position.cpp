#include <fmt/format.h>
#include <gmock/gmock.h>

#include <ostream>
#include <string>
#include <tuple>
#include <vector>

#include "tutti/train/fit/detail/position.h"

namespace tutti::detail {
namespace {

struct Case {
  std::string name;
  Course course;
  std::optional<CheckpointPosition> checkpoint{};
  int64_t servers_at = 0;
  bool may_be_lost = false;
  Position begins{};
  int64_t version = 0;
  std::optional<EpochPlan> plan{};
};

std::string words(const Position& at) {
  return fmt::format("epoch {}, {} steps, {} in it{}", at.epoch, at.steps, at.in_epoch,
                     at.meets ? ", meets" : "");
}

std::string words(const std::optional<EpochPlan>& plan) {
  if (!plan) return "nothing";
  return fmt::format("epoch {}, steps {} to {}, {} before it, first update {}", plan->number,
                     plan->first_step, plan->steps, plan->steps_before, plan->first_update);
}

const std::vector<Case> cases = {
    {.name = "a training that begins",
     .course = {.epochs = 3, .epoch_length = 10},
     .plan = {{.number = 0, .first_step = 0, .steps = 10}}},
    {.name = "the second fit() of a program: updates go on, epochs begin again",
     .course = {.epochs = 3, .epoch_length = 10},
     .version = 30,
     .plan = {{.number = 0, .steps = 10, .first_update = 30}}},
    {.name = "fewer steps than an epoch has",
     .course = {.epochs = 3, .epoch_length = 10, .max_steps = 4},
     .plan = {{.number = 0, .steps = 4}}},
    {.name = "another process had two epochs",
     .course = {.epochs = 3, .epoch_length = 10, .initial_epoch = 2},
     .begins = {.epoch = 2},
     .plan = {{.number = 2, .steps = 10, .first_update = 20}}},
    {.name = "a checkpoint in the middle of an epoch",
     .course = {.epochs = 3, .epoch_length = 10},
     .checkpoint = {{.epoch = 1, .steps = 14, .in_epoch = 4}},
     .begins = {.epoch = 1, .steps = 14, .in_epoch = 4},
     .version = 14,
     .plan = {{.number = 1, .first_step = 4, .steps = 10, .steps_before = 10, .first_update = 10}}},
    {.name = "a checkpoint before the validation of its epoch: that is still to do",
     .course = {.epochs = 3, .epoch_length = 10},
     .checkpoint = {{.epoch = 1, .steps = 20, .in_epoch = 10}},
     .begins = {.epoch = 1, .steps = 20, .in_epoch = 10},
     .version = 20,
     .plan =
         {{.number = 1, .first_step = 10, .steps = 10, .steps_before = 10, .first_update = 10}}},
    {.name = "a checkpoint of a training that is over",
     .course = {.epochs = 2, .epoch_length = 10},
     .checkpoint = {{.epoch = 2, .steps = 20}},
     .begins = {.epoch = 2, .steps = 20},
     .version = 20},
    {.name = "a checkpoint where max_steps cut the epoch",
     .course = {.epochs = 2, .epoch_length = 10, .max_steps = 14},
     .checkpoint = {{.epoch = 1, .steps = 14, .in_epoch = 4}},
     .begins = {.epoch = 1, .steps = 14, .in_epoch = 4},
     .version = 14},
    {.name = "servers that go on from a snapshot",
     .course = {.epochs = 3, .epoch_length = 10},
     .servers_at = 14,
     .begins = {.epoch = 1, .steps = 14, .in_epoch = 4},
     .version = 14,
     .plan = {{.number = 1, .first_step = 4, .steps = 10, .steps_before = 10, .first_update = 10}}},
    {.name = "a snapshot between two epochs",
     .course = {.epochs = 3, .epoch_length = 10},
     .servers_at = 20,
     .begins = {.epoch = 2, .steps = 20},
     .version = 20,
     .plan = {{.number = 2, .steps = 10, .steps_before = 20, .first_update = 20}}},
    {.name = "a snapshot that is further than what was asked for",
     .course = {.epochs = 1, .epoch_length = 10},
     .servers_at = 14,
     .begins = {.epoch = 1, .steps = 10},
     .version = 14},
    {.name = "who comes again at the end of an epoch meets the others there",
     .course = {.epochs = 3, .epoch_length = 10},
     .servers_at = 20,
     .may_be_lost = true,
     .begins = {.epoch = 1, .steps = 20, .in_epoch = 10, .meets = true},
     .version = 20,
     .plan =
         {{.number = 1, .first_step = 10, .steps = 10, .steps_before = 10, .first_update = 10}}},
    {.name = "and at the end of one that max_steps cut",
     .course = {.epochs = 3, .epoch_length = 10, .max_steps = 14},
     .servers_at = 14,
     .may_be_lost = true,
     .begins = {.epoch = 1, .steps = 14, .in_epoch = 4, .meets = true},
     .version = 14,
     .plan = {{.number = 1, .first_step = 4, .steps = 4, .steps_before = 10, .first_update = 10}}},
    {.name = "workers that are not in step: a batch has its numbers, not an update",
     .course = {.epochs = 3, .epoch_length = 10, .by_lease = true},
     .servers_at = 14,
     .begins = {.epoch = 1, .steps = 14, .in_epoch = 4},
     .version = 14,
     .plan = {{.number = 1, .first_step = 4, .steps = 10, .steps_before = 10, .first_update = 10}}},
};

TEST(Positions, BeginWhereTheirTableSays) {
  for (const Case& c : cases) {
    const Position at = where_to_begin(c.course, c.checkpoint, c.servers_at, c.may_be_lost);
    EXPECT_EQ(words(at), words(c.begins)) << c.name;
    EXPECT_EQ(words(next_epoch(c.course, at, c.version)), words(c.plan)) << c.name;
  }
}

// A step as it is trained: its epoch, its place there, the numbers that it draws by.
using Trained = std::tuple<int64_t, int64_t, int64_t>;

std::vector<Trained> trained_from(const Course& course, Position at, int64_t version) {
  std::vector<Trained> all;
  while (const auto plan = next_epoch(course, at, version)) {
    for (int64_t s = plan->first_step; s < plan->steps; ++s)
      all.emplace_back(plan->number, s, plan->first_update + s);
    const int64_t steps = plan->steps - plan->first_step;
    version += steps;
    at = {.epoch = plan->number + 1, .steps = at.steps + steps};
  }
  return all;
}

// Whatever a training is cut off after, what follows is what would have followed.
TEST(Positions, WhatFollowsIsWhatWouldHaveFollowed) {
  for (const int64_t length : {1, 2, 5})
    for (const int64_t initial : {0, 2})
      for (const int64_t max_steps : {0, 1, 5, 7, 100}) {
        const Course course{.epochs = initial + 3,
                            .epoch_length = length,
                            .max_steps = max_steps,
                            .initial_epoch = initial};
        const auto all = trained_from(course, where_to_begin(course, {}, 0, false), 0);
        ASSERT_EQ(std::ssize(all), max_steps == 0 ? 3 * length : std::min(3 * length, max_steps));
        for (int64_t done = 1; done < std::ssize(all); ++done) {
          const std::vector<Trained> left(all.begin() + done, all.end());
          const CheckpointPosition checkpoint{
              .epoch = initial + done / length, .steps = done, .in_epoch = done % length};
          const auto where = fmt::format("length {}, from epoch {}, max_steps {}, after {}", length,
                                         initial, max_steps, done);
          EXPECT_EQ(trained_from(course, where_to_begin(course, checkpoint, 0, false), done), left)
              << "checkpoint, " << where;
          for (const bool may_be_lost : {false, true})
            EXPECT_EQ(trained_from(course, where_to_begin(course, {}, done, may_be_lost), done),
                      left)
                << "snapshot, " << where;
        }
      }
}

}  // namespace
}  // namespace tutti::detail
