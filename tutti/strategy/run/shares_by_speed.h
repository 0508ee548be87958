/// Shares by speed: how many rows of a batch each replica gets, from how long it takes a row.
///
/// Glossary: R rows of a global batch, n replicas, c_r seconds that replica r computes a row
/// (forward and backward; not what it waits for others), k_r >= 1 rows of replica r, sum k_r = R.
/// A step takes max k_r c_r. The least of that is a bottleneck assignment of equal jobs to machines
/// of unlike speed, which the greedy choice solves: each next row goes to who would then be done
/// first (Ibaraki & Katoh 1988, Resource Allocation Problems, chapter 5, minimax).
///
/// Thread rule: pure functions. Every rank that has the same figures comes to the same shares: they
/// multiply and compare, no more. docs/design/shares.md.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "tutti/strategy/choice/options.h"

namespace tutti {

/// What a replica has measured since it was last asked.
struct RowTimes {
  double seconds = 0;  ///< the median of its steps, for a row
  double spread = 0;   ///< from the first quartile to the third, over the median
  int64_t steps = 0;   ///< that were measured
  int64_t batch = 0;   ///< rows of the largest global batch among them
  /// The standard error of the median, as a part of it: 0.93 times the quartiles' distance over
  /// sqrt(steps) (McGill, Tukey & Larsen 1978, doi:10.1080/00031305.1978.10479236).
  double error() const;
  bool operator==(const RowTimes&) const = default;
};

/// Of the times a row of some steps, in any order, and the rows of the global batch. Quartiles are
/// those of Hyndman & Fan's (1996, doi:10.1080/00031305.1996.10473566) type 7.
RowTimes row_times(std::vector<double> seconds_a_row, int64_t batch);

/// Rows of each replica, in all `rows`, at least one each, so that none takes longer than it must.
/// `seconds_a_row`: one a replica, each above 0; `rows` >= their number. Of replicas that would be
/// done at the same time the lower one gets the row.
std::vector<int64_t> fastest_rows(int64_t rows, std::span<const double> seconds_a_row);

/// Whether shares may be taken at all; Model::fit knows what a batch norm needs.
using AllowedShares = std::function<bool(std::span<const int64_t> shares)>;

struct SharesVerdict {
  std::vector<int64_t> shares;  ///< the new ones; empty: those that there are stay
  double gain = 0;              ///< predicted: the step's time before over that after, less 1
  bool unusable = false;        ///< the figures are
  std::string why;              ///< in words, figures included
};

/// Whether other shares than `now` (as data::share takes them; empty: equal) are worth it.
/// `figures`: one a replica.
SharesVerdict decide_shares(std::span<const double> now, std::span<const RowTimes> figures,
                            const BySpeed& options, const AllowedShares& allowed = {});

}  // namespace tutti
