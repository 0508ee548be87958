/// Replay: what a run would have cost without some of its ranks.
///
/// In a synchronous step all ranks wait for the last, then gradients are added and parameters
/// updated. So a step takes as long as
///
///     (until the last rank is there) + (what follows for all)
///
/// and without a rank the first term is that of the others, while the second stays as it was: the
/// others do in their steps what they did, on the samples that they had, and adding and updating
/// takes as long for fewer ranks. Since a rank is there so long after the step began, and that is
/// when the step before it was over, this walks the same graph of events as if the run were
/// simulated from its begin to its end. The idea: a recorded trace is a graph, which is changed and
/// walked again: Zhu, Phanishayee and Pekhimenko 2020, Daydream, USENIX ATC
/// (https://www.usenix.org/conference/atc20/presentation/zhu-hongyu).
///
/// Thread rule: pure functions.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "tutti/extras/replay/run_record.h"

namespace tutti::plan {

/// A run as it was, or as it would have been.
struct Replayed {
  std::vector<double> seconds;  ///< by step
  double samples = 0;           ///< that the ranks in it had, in all steps
  double exposed = 0;  ///< mean seconds of a step behind the last backward pass: sums that nothing
                       ///< hid, and the update; not what a forward pass waits for sums left to it

  double mean() const;
  double median() const;  ///< of an even number the mean of the two in the middle
  double samples_per_second() const;
};

/// Without the ranks of `without`, in any order, each once at least; empty: as it was. Throws
/// UsageError for a rank that the record has not, when none is left, and for a record without
/// steps.
Replayed replay(const RunRecord& record, std::span<const int> without = {});

/// What a rank meant for the run.
struct RankCost {
  double there = 0;    ///< mean seconds from a step's begin until it was there
  int64_t last = 0;    ///< steps in which all waited for it; of several, the lowest rank
  double seconds = 0;  ///< mean of a step, that went on it alone: as it was, less without it
};

/// By rank.
std::vector<RankCost> costs_of_ranks(const RunRecord& record);

/// "rank:3", or "rank:3,rank:0" for several. Throws UsageError, with an example, for other words.
std::vector<int> parse_ranks(std::string_view text);

}  // namespace tutti::plan
