#include "tutti/strategy/run/shares_by_speed.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <queue>

#include "tutti/base/detail/check.h"
#include "tutti/data/share.h"

namespace tutti {
namespace {

// So that a quartile is not the least or the most of them.
constexpr int64_t kLeastMeasured = 5;

double quantile(std::span<const double> sorted, double part) {
  const double at = part * static_cast<double>(sorted.size() - 1);
  const auto low = static_cast<size_t>(at);
  const size_t high = std::min(low + 1, sorted.size() - 1);
  return sorted[low] + (at - static_cast<double>(low)) * (sorted[high] - sorted[low]);
}

double milliseconds(double seconds) { return 1e3 * seconds; }

// Why figures cannot be used; "": they can.
std::string why_of_no_use(std::span<const RowTimes> figures, const BySpeed& options) {
  for (size_t replica = 0; replica < figures.size(); ++replica) {
    const RowTimes& own = figures[replica];
    if (own.steps < kLeastMeasured || !(own.seconds > 0))
      return fmt::format("replica {} has measured {} steps, {} at least are needed", replica,
                         own.steps, kLeastMeasured);
    if (!(own.error() <= options.most_error))
      return fmt::format(
          "too noisy: the times of replica {} spread by {:.0f} % of their median of {:.3g} ms a "
          "row (quartiles of {} steps), which leaves it uncertain by {:.0f} %, of {:.0f} % at most",
          replica, 100 * own.spread, milliseconds(own.seconds), own.steps, 100 * own.error(),
          100 * options.most_error);
  }
  return {};
}

double step_seconds(std::span<const int64_t> rows, std::span<const double> seconds_a_row) {
  double longest = 0;
  for (size_t replica = 0; replica < rows.size(); ++replica)
    longest = std::max(longest, static_cast<double>(rows[replica]) * seconds_a_row[replica]);
  return longest;
}

}  // namespace

double RowTimes::error() const {
  return steps > 0 ? 0.93 * spread / std::sqrt(static_cast<double>(steps)) : 0;
}

RowTimes row_times(std::vector<double> seconds_a_row, int64_t batch) {
  if (seconds_a_row.empty()) return {};
  std::ranges::sort(seconds_a_row);
  const double median = quantile(seconds_a_row, 0.5);
  const double range = quantile(seconds_a_row, 0.75) - quantile(seconds_a_row, 0.25);
  return {.seconds = median,
          .spread = median > 0 ? range / median : 0,
          .steps = std::ssize(seconds_a_row),
          .batch = batch};
}

std::vector<int64_t> fastest_rows(int64_t rows, std::span<const double> seconds_a_row) {
  const auto replicas = std::ssize(seconds_a_row);
  TUTTI_CHECK(rows >= replicas, "fewer rows than replicas");
  double speed = 0;
  for (const double seconds : seconds_a_row) speed += 1 / seconds;
  // Done at the same time they would have rows / (speed c_r) each. The row that each is sure of
  // takes n at most from the others, so that all get that less n, and less 1 for rounding.
  std::vector<int64_t> taken;
  for (const double seconds : seconds_a_row) {
    const auto even = static_cast<int64_t>(static_cast<double>(rows) / (speed * seconds));
    taken.push_back(std::max<int64_t>(1, even - replicas - 1));
  }
  using Done = std::pair<double, size_t>;  // when a replica would be, with one row more
  std::priority_queue<Done, std::vector<Done>, std::greater<>> first;
  const auto push = [&](size_t replica) {
    first.emplace(static_cast<double>(taken[replica] + 1) * seconds_a_row[replica], replica);
  };
  for (size_t replica = 0; replica < taken.size(); ++replica) push(replica);
  for (int64_t left = rows - std::accumulate(taken.begin(), taken.end(), int64_t{0}); left > 0;
       --left) {
    const size_t replica = first.top().second;
    first.pop();
    ++taken[replica];
    push(replica);
  }
  return taken;
}

SharesVerdict decide_shares(std::span<const double> now, std::span<const RowTimes> figures,
                            const BySpeed& options, const AllowedShares& allowed) {
  if (const std::string why = why_of_no_use(figures, options); !why.empty())
    return {.unusable = true, .why = why};
  const int replicas = static_cast<int>(figures.size());
  const int64_t rows = std::ranges::max(figures, {}, &RowTimes::batch).batch;
  if (rows < replicas)
    return {.unusable = true,
            .why = fmt::format("a batch of {} has less than a row for each of {} replicas", rows,
                               replicas)};
  std::vector<double> seconds;
  std::vector<int64_t> before;
  for (int replica = 0; replica < replicas; ++replica) {
    seconds.push_back(figures[static_cast<size_t>(replica)].seconds);
    before.push_back(data::share(rows, replicas, replica, now).size());
  }
  const std::vector<int64_t> after = fastest_rows(rows, seconds);
  const double gain = step_seconds(before, seconds) / step_seconds(after, seconds) - 1;
  std::vector<double> shown(seconds.size());
  std::ranges::transform(seconds, shown.begin(), milliseconds);
  const std::string words =
      fmt::format("[{:.3g}] ms a row, a step with [{}] of {} rows would be {:.1f} % faster",
                  fmt::join(shown, ", "), fmt::join(after, ", "), rows, 100 * gain);
  const double error = std::ranges::max(figures, {}, &RowTimes::error).error();
  if (gain < std::max(options.least_gain, error))
    return {.gain = gain,
            .why = error > options.least_gain
                       ? fmt::format("{}, less than the {:.0f} % by which times are uncertain",
                                     words, 100 * error)
                       : fmt::format("{}, less than the {:.0f} % that a change is worth", words,
                                     100 * options.least_gain)};
  if (allowed && !allowed(after))
    return {.gain = gain,
            .why = words +
                   ", but would leave a replica a single sample of some batch, of which a "
                   "batch norm has no variance"};
  return {.shares = after, .gain = gain, .why = words};
}

}  // namespace tutti
