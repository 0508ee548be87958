/// The order of ranks in a job: by host, then by core, so that neighbours in rank are neighbours in
/// the machine and the tree of the reduction shape pairs near ones first.
/// Thread rule: pure function.
#pragma once

#include <span>
#include <string>
#include <vector>

namespace tutti {

/// One process as the rendezvous knows it.
struct RosterEntry {
  std::string host;  ///< what tells hosts apart; processes of one host give the same
  int core = -1;     ///< lowest core that it may run on; -1 when it is not bound to cores
  int worker = -1;   ///< number that its launcher gave it; -1 none
};

/// Positions in `roster`, in the order of ranks. Hosts stay together. They follow one another by
/// the lowest launcher's number on them, then by name ("n2" before "n10"); processes of a host by
/// core (those not bound come last), then by launcher's number, then as they stand in the roster.
/// With a roster in the same order on every process, the result is the same everywhere.
std::vector<int> rank_order(std::span<const RosterEntry> roster);

}  // namespace tutti
