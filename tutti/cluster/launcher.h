/// The local launcher: starts workers by exec, forwards what they print, ends the whole tree.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "tutti/base/deadline.h"

namespace tutti {

struct LaunchOptions {
  int num_workers = 1;                 ///< >= 1
  std::vector<std::string> command;    ///< program and arguments; searched in PATH when without '/'
  std::vector<std::string> environment;///< extra NAME=value for each worker
  Millis failure_grace{2'000};         ///< after the first failure the rest may end with their own error
  Millis signal_grace{2'000};          ///< after SIGTERM or SIGINT to the job, before SIGKILL
  bool announce = true;                ///< print `worker I pid P` at start
  bool prefix_output = true;           ///< forward output line by line behind `[worker]`
  bool handle_signals = true;          ///< forward SIGINT and SIGTERM; a second one ends at once
};

struct WorkerResult {
  int worker = 0;
  int pid = 0;
  int exit_code = -1;   ///< when it exited
  int signal = 0;       ///< when it was killed by one
  bool stopped_by_launcher = false;  ///< SIGTERM or SIGKILL came from us
  std::vector<std::string> last_lines;
};

struct LaunchResult {
  int exit_code = 0;         ///< 0, the first failure's code, or 128 + signal
  std::string root_cause;    ///< "rank 1 was killed by SIGKILL"; empty on success
  std::vector<WorkerResult> workers;
};

/// Runs the workers to their end. Throws UsageError when the program is not there or not executable.
/// Nothing of the job outlives the call, nor the launcher itself should it be killed.
LaunchResult launch(const LaunchOptions& options);

}  // namespace tutti
