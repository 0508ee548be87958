/// All-reduces between the hosts of a job, timed for what lies between them.
///
/// Thread rule: each worker of the job calls from its main thread.
#pragma once

#include <optional>
#include <vector>

#include "tutti/comm/group/group.h"
#include "tutti/plan/link_fit.h"

namespace tutti::cli {

struct HostsOfJob {
  Group workers;                    ///< all of them, tcp
  std::optional<Group> one_a_host;  ///< the lowest worker of each host, elsewhere nothing
  int hosts = 2;
};

/// Joins the job that a launcher started, in which this is worker `worker`: worker 0 is one of a
/// host. Collective over its workers. Throws UsageError where all are on one host, and what
/// join_replicas() throws.
HostsOfJob join_hosts(int worker);

/// Times of sizes from 8 bytes to 64 MiB, each for an equal share of `seconds` (> 0), but 5 times
/// at least; up to the first that takes over half a second, which is slow enough. A time is the
/// slowest member's, of short operations the mean of a row. Collective: the same on every member.
/// Throws Error where a sum is wrong, and PeerLost or Timeout that name ranks.
std::vector<plan::AllReduceTimes> time_all_reduces(Group& group, double seconds);

}  // namespace tutti::cli
