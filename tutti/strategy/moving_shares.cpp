#include "tutti/strategy/moving_shares.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <span>

#include "tutti/base/error.h"
#include "tutti/base/file.h"
#include "tutti/base/log.h"
#include "tutti/data/share.h"
#include "tutti/strategy/strategy_state.h"
#include "tutti/sync/updater.h"

namespace tutti {
namespace {

// The first replica without a row; -1: there is none.
int without_rows(int64_t rows, int replicas, std::span<const double> shares) {
  for (int replica = 0; replica < replicas; ++replica)
    if (data::share(rows, replicas, replica, shares).size() == 0) return replica;
  return -1;
}

void require_rows_by(std::string_view operation, int64_t rows, int replicas,
                     std::span<const double> shares, const std::string& which) {
  const int idle = without_rows(rows, replicas, shares);
  if (idle < 0) return;
  throw UsageError(fmt::format(
      "{}: {} [{}] leave replica {} of {} none of the {} rows of a global batch; expected one at "
      "least\n  give shares that are nearer to each other, a larger batch, or fewer replicas",
      operation, which, fmt::join(shares, ", "), idle, replicas, rows));
}

std::string words_of_shares(std::span<const double> shares) {
  return shares.empty() ? "equal shares" : fmt::format("shares [{}]", fmt::join(shares, ", "));
}

void require_a_row_each(std::string_view operation, int64_t rows, int replicas) {
  if (rows < replicas)
    throw UsageError(fmt::format(
        "{}: a global batch of {} has less than a row for each of the {} replicas that share it by "
        "speed or by a file; expected {} or more",
        operation, rows, replicas, replicas));
}

void require_rows_of(const data::ShareSchedule& schedule, std::string_view operation, int64_t rows,
                     int replicas) {
  for (const data::SharesFrom& change : schedule.changes)
    require_rows_by(operation, rows, replicas, schedule.at(change.step),
                    fmt::format("the shares from step {} on", change.step));
}

}  // namespace

void StrategyState::measure_steps() {
  for (const ReplicaContext& replica : contexts) replica.state_->watch.turn_on();
}

std::vector<RowTimes> StrategyState::take_row_times() {
  std::vector<RowTimes> times;
  for (const ReplicaContext& replica : contexts) times.push_back(replica.state_->watch.take());
  return times;
}

MovingShares::MovingShares(StrategyState& state) : state_(state) {
  const StrategyOptions& options = state_.options;
  if (!options.by_speed) {
    schedule_ = shares_of_file(options, state_.world.size);
    return;
  }
  state_.measure_steps();
  pause_ = next_look_ = options.by_speed->first_look;
  if (state_.world.chief && !options.by_speed->record.empty())
    require_writable(options.by_speed->record, "--shares by-speed");
  write_record();
}

// Null: there is no optimizer yet.
std::shared_ptr<Updater> MovingShares::counter() const {
  std::shared_ptr<Updater> found;
  for (const auto& one : state_.updaters) {
    auto updater = one.lock();
    if (!updater) continue;
    if (found)
      throw UsageError(
          "shares that follow speeds or a file are counted by the updates of one optimizer, and "
          "this strategy has two; give shares in numbers (--shares 2,1)");
    found = std::move(updater);
  }
  return found;
}

int64_t MovingShares::updates() const {
  const auto updater = counter();
  return updater ? updater->version() : 0;
}

void MovingShares::require_same_counter() {
  const auto updater = counter();
  if (counts_ && updater != counter_.lock())
    throw UsageError(
        "shares that follow speeds or a file are counted by the updates of one optimizer, and this "
        "one is another than that of the steps before (compile() again?); make a new Strategy for "
        "it, or give shares in numbers (--shares 2,1)");
  counts_ = updater != nullptr;
  counter_ = updater;
}

bool MovingShares::move(const AllowedShares& allowed) {
  require_same_counter();
  const int64_t step = updates();
  if (state_.options.by_speed && step >= next_look_) look(step, allowed);
  std::vector<double> next = schedule_.at(step);
  World& world = state_.world;
  if (next == world.shares) return false;
  if (!state_.options.by_speed) {
    news_ = fmt::format("shares: step {}: from {} to {}, as {} says", step,
                        words_of_shares(world.shares), words_of_shares(next),
                        state_.options.shares_file);
    if (world.chief) log(LogLevel::info, "{}", news_);
  }
  world.shares = std::move(next);
  for (const auto& one : state_.updaters)
    if (const auto updater = one.lock(); updater && updater->parts().slices != nullptr)
      updater->parts().slices->share_out(world.shares);
  return true;
}

int64_t MovingShares::steps_until_next() const {
  const int64_t step = updates();
  const int64_t next = state_.options.by_speed ? next_look_ : schedule_.next_change(step);
  return next < 0 ? std::numeric_limits<int64_t>::max() : std::max<int64_t>(1, next - step);
}

void MovingShares::look(int64_t step, const AllowedShares& allowed) {
  const BySpeed& options = *state_.options.by_speed;
  const std::vector<double> now = schedule_.at(step);
  const SharesVerdict verdict = decide_shares(now, figures_of_all(), options, allowed);
  const bool changes = !verdict.shares.empty();
  const std::string words = fmt::format(
      "shares: step {}: {}: {}", step,
      changes
          ? fmt::format("from {} to [{}]", words_of_shares(now), fmt::join(verdict.shares, ", "))
          : words_of_shares(now) + " stay",
      verdict.why);
  if (state_.world.chief) log(verdict.unusable ? LogLevel::warning : LogLevel::info, "{}", words);
  pause_ = changes ? options.first_look : std::min(2 * pause_, options.rarest_look);
  next_look_ = step + pause_;
  if (!changes) return;
  news_ = words;
  schedule_.changes.push_back({step, verdict.shares});
  write_record();
}

// The same on every worker: in rank order.
std::vector<RowTimes> MovingShares::figures_of_all() {
  const std::vector<RowTimes> own = state_.take_row_times();
  std::vector<RowTimes> all(static_cast<size_t>(state_.world.size));
  auto to = std::as_writable_bytes(std::span(all)).begin();
  for (const auto& [worker, bytes] :
       state_.membership.exchange_alike("shares", std::as_bytes(std::span(own))))
    to = std::ranges::copy(bytes, to).out;
  return all;
}

data::ShareSchedule MovingShares::so_far() const {
  data::ShareSchedule known = schedule_;
  known.cut(updates() + 1);
  return known;
}

void MovingShares::go_on(data::ShareSchedule changes, int64_t updates) {
  if (!state_.options.by_speed) return;
  schedule_ = std::move(changes);
  pause_ = state_.options.by_speed->first_look;
  next_look_ = updates + pause_;
  state_.take_row_times();
  write_record();
}

void MovingShares::write_record() const {
  const auto& by_speed = state_.options.by_speed;
  if (!by_speed || by_speed->record.empty() || !state_.world.chief) return;
  write_file_atomically(by_speed->record, schedule_.to_json(state_.world.size));
}

void MovingShares::require_rows(std::string_view operation, int64_t rows) const {
  require_a_row_each(operation, rows, state_.world.size);
  if (!state_.options.by_speed) require_rows_of(schedule_, operation, rows, state_.world.size);
}

void check_given_shares(const StrategyOptions& options, int replicas, int64_t rows) {
  if (options.shares_move()) require_a_row_each("--shares", rows, replicas);
  if (options.by_speed && !options.by_speed->record.empty())
    require_writable(options.by_speed->record, "--shares by-speed");
  if (!options.shares_file.empty())
    require_rows_of(shares_of_file(options, replicas), "--shares", rows, replicas);
  const std::vector<double>& shares = options.shares;
  if (shares.empty()) return;
  if (std::ssize(shares) != replicas)
    throw UsageError(fmt::format(
        "--shares: got {} ([{}]) for {} replicas; give one each, or none for equal shares",
        shares.size(), fmt::join(shares, ", "), replicas));
  if (rows >= replicas) require_rows_by("--shares", rows, replicas, shares, "the shares");
}

void require_rows_for_all(std::string_view operation, int64_t rows,
                          const mesh::Topology& topology) {
  if (topology.shares.empty() || rows < topology.num_replicas()) return;
  require_rows_by(operation, rows, topology.num_replicas(), topology.shares, "the shares");
}

}  // namespace tutti
