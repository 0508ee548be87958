/// The engine for sums over the CUDA devices of several hosts: NCCL adds up inside each host, and
/// any engine for host memory adds between them, by pinned memory. For networks that NCCL does not
/// know, or hosts that it cannot connect.
///
///     host 0:  device 0   device 1      inside: every device gets the host's sum of its part;
///                 |          |          the rail of each adds that up over the hosts;
///     host 1:  device 2   device 3      inside: the parts are shared out
///
/// It has all_reduce (sum, min, max, product) and barrier, and refuses the rest: UsageError. As
/// under NCCL sums are in an order of its own, the same bits on all ranks. A rail moves while
/// somebody waits here or calls: Work::wait_on() returns once the hosts have added, which is the
/// one wait of a host in a step. docs/design/hier_engine.md. Thread rule: as Engine.
#pragma once

#include <functional>
#include <memory>

#include "tutti/comm/nccl/nccl.h"

namespace tutti {

/// What one member is given; `rail` belongs to its thread from then on.
struct NcclHierParts {
  int rank = 0;  ///< of this member among all
  int size = 1;
  MeetingPlace* inside = nullptr;  ///< of this host's ranks; needed only here
  std::shared_ptr<Engine> rail;    ///< the ranks with this one's number inside, one a host
  /// Called while this member waits: throws what others have learnt meanwhile, such as who is lost.
  std::function<void()> look = [] {};
  int64_t chunk_bytes = int64_t{4} << 20;  ///< while one crosses, the next is added up inside
};

/// Collective: every host has as many ranks. Throws as make_nccl().
std::shared_ptr<Engine> make_nccl_hier(NcclHierParts parts, const NcclOptions& options = {});

}  // namespace tutti
