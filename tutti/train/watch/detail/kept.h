/// Kept: a part of a training that checkpoints keep and give back; not for users. Who has such a
/// part hands it to Checkpointing: to gather and to put back is one loop over them, in their order.
/// Thread rule: the thread of fit(), between runs.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tutti/sync/updater.h"
#include "tutti/train/watch/detail/checkpoint_read.h"

namespace tutti::detail {

/// What a part adds to the files of a checkpoint, by the names of docs/formats/checkpoint.md.
struct KeptTensors {
  NamedTensors common{};  ///< that all workers have alike: each of them is written by one
  NamedTensors own{};     ///< of this worker's replicas
};

class Kept {
 public:
  virtual ~Kept() = default;
  /// Of its words in CheckpointManifest::kept.
  virtual std::string name() const = 0;
  /// What it remembers beside tensors, as JSON; "": tensors alone, always. A training with words of
  /// a name goes on from checkpoints that have them, and from no others.
  virtual std::string words() const { return ""; }
  virtual KeptTensors tensors() const { return {}; }
  /// Throws where what was read is not for this one: DataError, UsageError. Of all parts before any
  /// is put back, on all workers.
  virtual void check(const CheckpointRead&) const {}
  /// Puts back what check() has looked at.
  virtual void load(const CheckpointRead& read) = 0;
};

using KeptParts = std::vector<std::unique_ptr<Kept>>;

}  // namespace tutti::detail
