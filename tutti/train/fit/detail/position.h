/// Where a training stands, and what of it comes next. Not for users. Pure functions.
///
/// A training is epochs of steps; a step is one update of the optimizer. It may begin in the
/// middle: after a checkpoint, which has all of it, or after a snapshot of parameter servers, which
/// have counted the updates alone.
#pragma once

#include <cstdint>
#include <optional>

namespace tutti::detail {

/// How long a training is: what fit() was asked for.
struct Course {
  int64_t epochs = 1;         ///< number of the last one, from 1
  int64_t epoch_length = 1;   ///< steps of a whole epoch
  int64_t max_steps = 0;      ///< it ends after so many in all; 0: no limit
  int64_t initial_epoch = 0;  ///< epochs that another process had before
  /// Workers are not in step: updates have no place in an epoch, batches have.
  bool by_lease = false;
};

struct Position {
  int64_t epoch = 0;     ///< that is next, or has begun, from 0
  int64_t steps = 0;     ///< that are done, of all epochs of this training
  int64_t in_epoch = 0;  ///< those of them in `epoch`
  /// Who has come again at the end of `epoch` meets the other workers there.
  bool meets = false;
};

/// What a checkpoint says of it.
struct CheckpointPosition {
  int64_t epoch = 0;
  int64_t steps = 0;
  int64_t in_epoch = 0;
};

/// checkpoint  that is gone on from
/// servers_at  updates that the servers had when this process came; 0: they have just begun
/// may_be_lost  workers are, and come again: one at the end of an epoch meets the others there
Position where_to_begin(const Course& course, const std::optional<CheckpointPosition>& checkpoint,
                        int64_t servers_at, bool may_be_lost);

/// The steps of one epoch that are still to do.
struct EpochPlan {
  int64_t number = 0;        ///< of the epoch, from 0
  int64_t first_step = 0;    ///< those before it were done
  int64_t steps = 0;         ///< of the epoch, with those: it may be cut short by max_steps
  int64_t steps_before = 0;  ///< of this training, before the first of the epoch
  /// Number of the epoch's first step among all updates: what random numbers are drawn by, so that
  /// none are drawn twice, and each step draws its own however often the training was cut off.
  int64_t first_update = 0;
};

/// version  of the optimizer: updates that it has made. Returns nothing when all is done.
std::optional<EpochPlan> next_epoch(const Course& course, const Position& position,
                                    int64_t version);

}  // namespace tutti::detail
