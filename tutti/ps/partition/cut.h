/// PartitionCut: one partition in a consistent cut of the whole job, made while training goes on.
///
/// Every worker puts a mark into its stream to each partition, between two of its steps, so that a
/// cut has the same steps of a worker in all partitions (Chandy & Lamport 1985,
/// doi:10.1145/214451.214456; a push that is on its way is the sender's here, which sends it before
/// its mark). At the first mark the state is forked: it is copied on write. From then on the fork
/// carries out what belongs to the cut, and the partition itself everything; nobody waits.
///
/// Not synchronous: orders of a worker belong to the cut until its mark. Synchronous: pushes of
/// steps before that of the first mark do. A worker marks only with the parameters of its next step
/// in hand, for which all have pushed the step before: so the first mark in every partition says
/// the same step.
///
/// Thread rule: one thread; a complete cut may be read in another, and is dropped in the first.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "tutti/ps/partition/cut_part.h"
#include "tutti/ps/partition/partition_state.h"

namespace tutti::ps {

class PartitionCut {
 public:
  /// The first mark, which `live` has carried out.
  PartitionCut(PartitionState& live, const Message& mark);
  /// Of a job whose workers are all gone: everything.
  PartitionCut(PartitionState& live, int64_t number, std::string folder);

  /// The next order of the log, which `live` has carried out.
  void follow(const PartitionState& live, const Message& order);
  /// Whether all that belongs to it has been carried out.
  bool complete(const PartitionState& live) const;

  int64_t number() const noexcept { return number_; }
  const std::string& folder() const noexcept { return folder_; }
  PartitionState& state() noexcept { return state_; }
  const PartitionState& state() const noexcept { return state_; }
  /// Synchronous: the next one, as many as every piece has had updates. Else: updates. -1: this
  /// partition has nothing to update.
  int64_t step() const;
  /// Once complete: why it cannot be written; "": it can.
  std::string objection() const;
  /// What is said of it beside the others'.
  CutPart part(int partition) const;

 private:
  bool belongs(const Message& order) const;

  const int64_t number_;
  const std::string folder_;
  const int64_t step_;             // of the first mark
  std::map<int, int64_t> marked_;  // by worker: the step behind its mark
  PartitionState state_;
};

}  // namespace tutti::ps
