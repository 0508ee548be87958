/// Our side of networks.h: bench_network_step, a process of its own each time.
/// Thread rule: the main thread alone.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tutti/base/json.h"

#include "bench/compare/checkout.h"

namespace tutti::bench {

/// Of a network what peer/networks.py writes for a batch of all replicas.
class NetworkWork {
 public:
  /// Throws Error when it cannot be made.
  NetworkWork(const std::string& network, int64_t batch);
  std::string path() const { return file_.path(); }
  const std::string& network() const noexcept { return network_; }

 private:
  std::string network_;
  ScratchFile file_;
};

struct NetworkFigures {
  double step_ms = 0;          ///< the median of the timed steps; of the slowest process
  std::vector<double> losses;  ///< of the steps of the warm-up, over the whole batch
  double peak_mb = 0;          ///< by so much training made the processes grow; 0: not asked
  std::string setting;         ///< of a peer, found by a trial
};

/// A list as programs on both sides write it: null is NaN, which JSON does not have.
std::vector<double> losses_in(const Json& list);

/// mirrored, multi_worker, independent (processes that never talk), one_device (one replica with a
/// thread for each of `replicas`). Throws Error when it fails.
NetworkFigures run_ours(const NetworkWork& work, const std::string& strategy, int replicas,
                        int64_t warmup, int64_t steps);

}  // namespace tutti::bench
