/// RunRecord: what each rank of a training did in each of its steps, from the traces of its workers
/// (`tutti train --trace FILE`). Replay (replay.h) asks it what a run would have cost otherwise.
///
/// Thread rule: values and pure functions; read_run reads files.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace tutti::plan {

/// One step of all ranks.
struct RunStep {
  int64_t samples = 0;  ///< of all ranks
  double seconds = 0;   ///< from its begin to its end, as worker 0 saw them
  /// By rank: seconds from that begin until its last backward was over, or until it gave away a
  /// gradient of zero where it had no samples. All that this rank alone is slow in: its input,
  /// forward and backward, and a late begin.
  std::vector<double> there;
};

struct RunRecord {
  std::string strategy;
  std::vector<double> shares;  ///< by rank, of a step's samples; their sum is 1
  std::vector<RunStep> steps;  ///< in the order in which they were taken, over all epochs
  bool whole = true;           ///< false: a trace was full, later steps are not known

  int ranks() const { return static_cast<int>(shares.size()); }
};

/// The traces in a folder: all its files NAME.json that are such, one a worker. Validation and what
/// else lies between epochs is in no step. A clock is one for all workers of a machine; workers of
/// another machine are taken to end their steps when worker 0 does, in the median of the steps.
///
/// Throws UsageError when there is no such folder or no trace in it, and for trainings whose ranks
/// wait for each other within forward or backward, or not at all: parameter servers, replicas that
/// take turns or compute on GPUs, a mesh, parameters in slices. DataError, with the file, when a
/// trace is damaged, is not of a training, is of another run than the others, or one is missing.
/// What a rank waits for inside its model (SyncBatchNorm) cannot be told from its own work.
RunRecord read_run(const std::filesystem::path& folder);

}  // namespace tutti::plan
