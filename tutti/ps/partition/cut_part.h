/// CutPart: what is said of one partition's part of a cut, and whether parts are one cut of the
/// job: servers say it when they have written theirs, a manifest keeps it, and it is looked at
/// before a snapshot appears and again before anybody goes on from one.
/// docs/formats/snapshot.md. Pure. Thread rule: plain values.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/ps/spec/spec.h"

namespace tutti::ps {

struct CutPart {
  int partition = 0;
  /// Synchronous: updates that everything in it has had; else steps of workers that it has had. -1:
  /// it has nothing to update.
  int64_t step = -1;
  std::vector<int64_t> tables;  ///< versions of its part of each embedding table
  /// Not synchronous: the steps at which workers marked the cut, by worker; those that had gone are
  /// not there.
  std::optional<std::map<int, int64_t>> marks;
  /// Synchronous: whose gradients an update is made of.
  std::optional<std::string> sums_of;
};

/// CutPart::sums_of of what `spec` trains; nothing where workers are not in step.
std::optional<std::string> sums_of(const Spec& spec);

/// A JSON object, and back; other keys are left alone. Throws Error for a text that is none.
std::string to_text(const CutPart& part);
CutPart cut_part_from(std::string_view text);

/// Why `parts`, one of each partition, are not one cut of the job: partitions that have had
/// different steps, or different steps of a worker. "": they are one.
std::string objection_to_cut(const std::vector<CutPart>& parts);

}  // namespace tutti::ps
