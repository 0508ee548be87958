#include "tutti/train/fit/detail/position.h"

#include <algorithm>
#include <limits>

namespace tutti::detail {
namespace {

int64_t limit_of(const Course& course) {
  return course.max_steps > 0 ? course.max_steps : std::numeric_limits<int64_t>::max();
}

}  // namespace

Position where_to_begin(const Course& course, const std::optional<CheckpointPosition>& checkpoint,
                        int64_t servers_at, bool may_be_lost) {
  Position at{.epoch = course.initial_epoch};
  if (checkpoint)
    at = {.epoch = checkpoint->epoch, .steps = checkpoint->steps, .in_epoch = checkpoint->in_epoch};
  if (servers_at <= at.steps) return at;
  const int64_t length = course.epoch_length;
  const int64_t begin = at.steps - at.in_epoch;  // of the epoch at.epoch
  const int64_t all = std::min(limit_of(course), begin + (course.epochs - at.epoch) * length);
  const int64_t done = std::min(servers_at, all);
  at = {.epoch = at.epoch + (done - begin) / length,
        .steps = done,
        .in_epoch = (done - begin) % length};
  const bool at_end = at.in_epoch == 0 || done == all;
  if (!may_be_lost || servers_at > all || !at_end) return at;
  at.meets = true;
  if (at.in_epoch == 0) {
    --at.epoch;
    at.in_epoch = length;
  }
  return at;
}

std::optional<EpochPlan> next_epoch(const Course& course, const Position& position,
                                    int64_t version) {
  const bool done = position.steps >= limit_of(course) && !position.meets;
  if (done || position.epoch >= course.epochs) return std::nullopt;
  EpochPlan plan{.number = position.epoch,
                 .first_step = position.in_epoch,
                 .steps_before = position.steps - position.in_epoch};
  plan.steps = std::min(course.epoch_length, limit_of(course) - plan.steps_before);
  const int64_t in_all_epochs = plan.number * course.epoch_length;
  plan.first_update = version - position.in_epoch;
  if (course.initial_epoch > 0) plan.first_update = std::max(plan.first_update, in_all_epochs);
  if (course.by_lease) plan.first_update = in_all_epochs;
  return plan;
}

}  // namespace tutti::detail
