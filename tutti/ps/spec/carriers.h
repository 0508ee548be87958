/// Carriers: which worker talks to the servers about which piece.
///
/// With Spec::host_sums the workers of one host push as one: each *carries* some of the pieces,
/// about as many bytes as the others. It adds what the others have of those, pushes the sum, and
/// hands on the parameters that come back, so that a host sends and receives each piece once.
/// Without, every worker carries all, as if it were alone on its host.
/// Thread rule: pure functions of the specification.
#pragma once

#include <vector>

#include "tutti/ps/spec/spec.h"

namespace tutti::ps {

/// Workers [first, first + count).
struct HostWorkers {
  int first = 0;
  int count = 1;
  bool operator==(const HostWorkers&) const = default;
};

class Carriers {
 public:
  /// Hosts are those of the reduction shape, in which every worker has equally many replicas.
  explicit Carriers(const Spec& spec);

  const std::vector<HostWorkers>& hosts() const noexcept { return hosts_; }
  int host_of(int worker) const { return host_of_.at(worker); }
  /// The worker of `host` that carries `piece`.
  int carrier(int host, int piece) const;
  bool carries(int worker, int piece) const { return carrier(host_of(worker), piece) == worker; }

 private:
  std::vector<HostWorkers> hosts_;
  std::vector<int> host_of_;  // by worker
  std::vector<std::vector<int>>
      numbers_;  // by host, then by piece: of the carrier among its host's
};

}  // namespace tutti::ps
