/// What `tutti_bench servers` measures: pull, push and both at once, per worker, beside the limit.
///
/// Every worker moves one float32 variable, cut evenly over the servers. Gradients are made before
/// the clock starts; what was pulled is copied out while it runs. A sample is the slowest worker's
/// time. The limit is that of dedicated servers: max(S / B, n S / (k B)) for n workers, k servers
/// and S bytes, with B measured between the samples: for tcp the rate of a raw stream in both
/// directions at once (floor.h), for shm that of memcpy.
/// Thread rule: each worker calls measure_ps() from its main thread.
#pragma once

#include <cstdint>
#include <string>

#include "tutti/comm/group/group.h"
#include "tutti/ps/spec/staleness.h"
#include "tutti/sync/served_options.h"

namespace tutti::bench {

struct PsBench {
  std::string engine = "shm";  ///< or "tcp": no memory is shared
  bool backups = true;
  ps::Staleness staleness;
  int64_t bytes = 64 << 20;  ///< a multiple of 4
  int rounds = 5;            ///< turns of B, push, pull, push_pull
};

struct PsRow {
  int servers = 1;
  int workers = 1;
  std::string engine;
  bool backups = true;
  std::string staleness;
  int64_t bytes = 0;
  double pull_gb_s = 0;  ///< 1e9 bytes of the variable a second and worker, medians
  double push_gb_s = 0;
  double push_pull_gb_s = 0;
  double rate_gb_s = 0;   ///< B
  double limit_gb_s = 0;  ///< B / max(1, workers / servers)
  double fraction = 0;    ///< of push_pull_gb_s
  bool correct = false;   ///< every push was applied once

  /// One JSON object on one line, with "bench": "ps".
  std::string to_json() const;
};

/// One worker of a job with servers; `side` has all workers. Collective; the row on every rank.
/// Throws as ps::Client does.
PsRow measure_ps(Group& side, const ServedPlace& place, const PsBench& bench);

}  // namespace tutti::bench
