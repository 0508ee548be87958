/// StepServer: a worker's end: runs the steps that its coordinator gives it, one after another.
#pragma once

#include <string>

#include "tutti/base/deadline.h"
#include "tutti/net/address.h"
#include "tutti/net/credentials.h"

namespace tutti::coordinator {

struct StepServerOptions {
  int number = 1;
  int num_workers = 1;
  HostPort view_service;
  std::string build;                ///< of this program (build.h)
  std::string process;              ///< process_words(): who it is among those of its number
  Millis limit{kDefaultTimeLimit};  ///< to find the coordinator; for a step that runs when that is
                                    ///< lost, to end before the process is ended
};

/// Serves until the coordinator says that all is over. Connects anew when a connection breaks.
/// Throws UsageError when it is refused (another build); PeerLost when the coordinator is lost;
/// Timeout when it is not found. Thread rule: the calling thread runs the steps; another speaks
/// with the coordinator meanwhile.
void serve_steps(const StepServerOptions& options, const Credentials& credentials);

}  // namespace tutti::coordinator
