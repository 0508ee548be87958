/// What lies between hosts, from the times of all-reduces that crossed it: the latency (alpha) and
/// the rate (1 / beta) by which the schedules of the engine take as long as was measured. Formulas:
/// docs/design/cost_model.md. (Hockney 1994, doi:10.1016/S0167-8191(06)80021-9.)
///
/// Thread rule: pure functions.
#pragma once

#include <span>
#include <vector>

#include "tutti/plan/link.h"
#include "tutti/plan/machine.h"

namespace tutti::plan {

/// All-reduces of one size, as engine_seconds() has them: float32, tcp engine, fixed order.
struct AllReduceTimes {
  double bytes = 0;             ///< > 0
  std::vector<double> seconds;  ///< of single ones, the slowest rank's; 4 or more, > 0
};

struct FittedLink {
  Link flow;       ///< of one flow between two hosts: wire, headers and engine together
  double off = 0;  ///< mean of |schedule - median| / median over the sizes
};

/// The link by which engine_seconds(ranks, bytes, link) is nearest to the medians: by the least
/// sum of relative differences, in which a size that is off by itself moves nothing. A latency of 0
/// is possible.
///
/// ranks        one a host, >= 2
/// times        of 3 sizes or more, which ascend
/// most_spread  of the middle half of a size's times over their median, and of FittedLink::off; > 0
///
/// Throws UsageError for what is not so. Throws Error, with the spread and what to try, for times
/// that spread further, for medians that no link explains, and where the largest size takes no
/// longer than the messages that it is sent in: then there is no rate to be seen.
FittedLink fit_link(int ranks, std::span<const AllReduceTimes> times, double most_spread = 0.3);

/// Writes the link of `hosts` hosts into the machine: what stands in `flow` beside the engine and
/// the headers, so that predict() with machine.link->wire lets a single flow take what was
/// measured. Where a flow was faster than two threads here, the engine is: machine.tcp is mended.
void set_link(Machine& machine, const Link& flow, int hosts);

}  // namespace tutti::plan
