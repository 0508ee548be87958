/// What the launcher put into the environment of a worker. Thread rule: reads the environment.
#pragma once

#include <optional>
#include <string>

namespace tutti {

/// What a launcher told this process. Workers of one host share a memfd and a lifeline.
struct WorkerEnvironment {
  int worker = 0;  ///< number of this worker, 0-based
  int num_workers = 1;
  std::string job;       ///< id of the job, for messages
  int segment_fd = -1;   ///< inherited memfd through which the workers meet; -1: one, or many hosts
  int lifeline_fd = -1;  ///< channel to the launcher; closes when that dies
  int steps_fd = -1;     ///< inherited memfd in which workers note their steps
  int local_worker = 0;  ///< number of this worker among those of its launcher
};

/// Reads the variables that `tutti run` sets; empty outside a launcher. Throws UsageError, with
/// both values and where they came from, when they contradict each other.
std::optional<WorkerEnvironment> worker_environment();

}  // namespace tutti
