/// MovingShares: shares of a batch that change while a training goes on, by the replicas' speeds or
/// as a file says (StrategyOptions::by_speed, shares_file).
///
/// A list of changes is the one truth (data::ShareSchedule). It is counted by the updates of the
/// strategy's one optimizer, so that replicas at once, replicas in turn, and a training that goes
/// on from a checkpoint have each change before the same step. docs/design/shares.md.
///
/// Thread rule: the strategy's thread, between runs. Fit and DistributedDataset call move(); loops
/// of one's own need nothing of this.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/data/share_schedule.h"
#include "tutti/strategy/run/shares_by_speed.h"
#include "tutti/sync/world.h"

namespace tutti {

class Updater;

class MovingShares {
 public:
  /// Of a strategy whose world is there. Reads the file, or writes a record without changes.
  /// UsageError naming the file and field, or why replicas have no speeds to go by.
  explicit MovingShares(struct StrategyState& state);

  /// Gives the world the shares of the step that comes; where it is time to look, replicas tell
  /// each other how fast they were, and decide. True when they are others than before: what was cut
  /// by the old ones beyond this step is to be cut again. Collective over workers where it looks.
  /// UsageError where two optimizers count, or another one than before.
  bool move(const AllowedShares& allowed = {});

  /// What the last change was, in words.
  const std::string& news() const noexcept { return news_; }

  /// Steps after which move() is to be called next, 1 or more.
  int64_t steps_until_next() const;

  /// What there is so far, for checkpoints: no change that is still to come.
  data::ShareSchedule so_far() const;
  /// Goes on with the changes of a training of as many replicas that has made `updates`. Those of a
  /// file stay. Others than as many replicas begin anew: `changes` is then empty.
  void go_on(data::ShareSchedule changes, int64_t updates);

  /// UsageError naming `operation` when a global batch of `rows` has less than one for each
  /// replica, or the shares of the file leave one without.
  void require_rows(std::string_view operation, int64_t rows) const;

  /// All changes that are known, those of a file beyond this step too.
  const data::ShareSchedule& schedule() const noexcept { return schedule_; }

 private:
  std::shared_ptr<Updater> counter() const;
  int64_t updates() const;
  void require_same_counter();
  void look(int64_t step, const AllowedShares& allowed);
  std::vector<RowTimes> figures_of_all();
  void write_record() const;

  struct StrategyState& state_;
  data::ShareSchedule schedule_;
  std::weak_ptr<Updater> counter_{};  ///< that the first move() has found
  bool counts_ = false;               ///< it has found one
  std::string news_;
  int64_t pause_ = 0;      ///< from one look to the next
  int64_t next_look_ = 0;  ///< updates; by speed alone
};

/// Before replicas meet: UsageError unless shares that were given, in numbers or as a file, are one
/// for each of `replicas`, and leave none without a row of a global batch of `rows`.
void check_given_shares(const StrategyOptions& options, int replicas, int64_t rows);

/// UsageError naming `operation` when shares that were given leave a replica no row of a global
/// batch, though that has enough: field, got, expected, what to try.
void require_rows_for_all(std::string_view operation, int64_t rows, const mesh::Topology& topology);

}  // namespace tutti
