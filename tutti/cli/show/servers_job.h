/// A small job of parameter servers in this process: what `show parameter-server`, `show sync` and
/// `show async` draw.
///
/// Servers and workers are threads, over real connections. Workers fit one vector of weights to
/// rows of their own by least squares; the last worker may have more rows than the others.
/// Thread rule: the main thread alone.
#pragma once

#include <cstdint>
#include <vector>

#include "tutti/observe/recorder.h"
#include "tutti/ps/spec/staleness.h"

namespace tutti::cli {

struct ServersJob {
  int workers = 3;  ///< 1 or more
  int servers = 1;  ///< 1 to 64
  ps::Staleness staleness{};
  int64_t steps = 3;      ///< of each worker, >= 1
  int64_t slow_rows = 1;  ///< the last worker has so many times the rows of another
};

struct ServersTrace {
  struct ServedPiece {
    int server = 0;
    int64_t bytes = 0;
  };
  ServersJob job;
  std::vector<ServedPiece> pieces;       ///< one a server, by number
  std::vector<Recorded> events;          ///< "ps." and "show.": of all steps, none of the start
  double first_loss = 0, last_loss = 0;  ///< of worker 0, before and after
};

/// Throws what servers and workers throw.
ServersTrace run_servers(const ServersJob& job);

}  // namespace tutti::cli
