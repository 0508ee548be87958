/// Who is in the job, seen from inside: what a worker process learns when it joins.
#pragma once

#include <exception>
#include <optional>
#include <string>
#include <vector>

#include "tutti/comm/group.h"
#include "tutti/comm/shm/shm.h"

namespace tutti {

/// What a launcher told this process. Workers of one host share a memfd and a lifeline.
struct WorkerEnvironment {
  int worker = 0;  ///< number of this worker, 0-based
  int num_workers = 1;
  std::string job;       ///< id of the job, for messages
  int segment_fd = -1;   ///< inherited memfd through which the workers meet; -1 for one worker
  int lifeline_fd = -1;  ///< channel to the launcher; closes when that dies
};

/// Reads the variables that `tutti run` sets; empty outside a launcher. Throws UsageError, with
/// both values and where they came from, when they contradict each other.
std::optional<WorkerEnvironment> worker_environment();

/// The group of all workers of this job, one rank a process; a group of one outside a launcher.
/// Starts the lifeline: the process ends when its launcher dies. Call once a process; later calls
/// return the same group. Throws Timeout naming workers that did not come within `limit`.
Group join(Millis limit = kDefaultTimeLimit);

struct JoinOptions {
  Millis limit{kDefaultTimeLimit};  ///< wait for workers that have not come
  bool pinned = false;              ///< every member's thread is pinned to cores of its own: spin
};

/// Thread members of several workers in one group: this worker's members, whose ranks in the group
/// are worker * replicas_per_worker + 0, 1, ... Collective over workers, and every worker gives the
/// same number. Each call makes a new group with memory of its own.
std::vector<Group> join_replicas(int replicas_per_worker, const JoinOptions& options = {});

/// Tells the launcher which error ends this process, so that it can tell the first failure from
/// those that follow from it. Call it where main() catches; after join() an exception that nobody
/// catches is reported by itself. Never throws; does nothing outside a launcher.
void report_failure(const std::exception& error) noexcept;

}  // namespace tutti
