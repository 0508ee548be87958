/// HostView: a group as one of its hosts sees it, for those who keep memory once a host and send
/// only sums across.
/// Thread rule: as the Group that it was made of.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <vector>

#include "tutti/comm/group/group.h"

namespace tutti {

/// Of sums that go between so many hosts while the next are made: as many MiB as a sum has rounds
/// each way. So the wire, not its latency, decides how long a piece takes, and the last, which
/// nothing hides, is short.
constexpr int64_t piece_bytes(int hosts) {
  return std::max<int64_t>(1, std::bit_width(static_cast<unsigned>(hosts - 1))) << 20;
}
/// Of fewer nothing is hidden that pays for a thread.
constexpr int64_t kLeastPieces = 2;

struct HostView {
  Group inside;  ///< the ranks of this host, in order; they share memory
  int host = 0;
  int num_hosts = 1;
  /// Work that crosses is cut into as many slices as the largest host has ranks. This rank carries
  /// slices [first_slice, first_slice + rails.size()); rails[i] joins the ranks that carry the same
  /// one, one a host, in order of hosts. Empty when all ranks are on one host.
  int num_slices = 1;
  int first_slice = 0;
  std::vector<Group> rails;
};

/// Groups without memory in common (tcp, mpi) count as one rank a host.
HostView host_view(const Group& group);

}  // namespace tutti
