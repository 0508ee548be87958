/// CheckpointOptions: what of a training is kept on disk, so that it can go on after whatever ended
/// it. Thread rule: a plain value.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "tutti/base/deadline.h"
#include "tutti/train/metrics/better.h"

namespace tutti {

/// Checkpoints of the whole training: parameters, optimizer, buffers of each replica, position in
/// the data, metrics, history, callbacks. A training that goes on from one ends with the bits of
/// one that was never interrupted, also under another strategy with as many replicas; with another
/// number of them the same samples follow in the same order. docs/guide/checkpoints.md.
struct CheckpointOptions {
  std::filesystem::path folder{};  ///< that all workers see; "": none
  /// Updates from one to the next; 0: after each epoch. With best_kept also after each epoch.
  int64_t every_steps = 0;
  bool resume = false;  ///< go on from the newest whole one, if there is one
  int newest_kept = 3;  ///< >= 1
  int best_kept = 0;    ///< so many more of those after an epoch, by `monitor`
  std::string monitor = "val_loss";
  Better better = Better::by_name;
  /// When a signal or stop_after asks for an end: for saving before it.
  Millis grace{30'000};
  /// For a disk: how long a training that wants the next checkpoint waits for the one that is still
  /// being written, from its begin on. After that it goes on without the next, and says so.
  /// Before the first step, for taking the folder and reading what is in it, 10 min at least.
  Millis disk_limit{600'000};
  bool remove_at_end = false;  ///< all of them, once the training has come to its end
};

}  // namespace tutti
