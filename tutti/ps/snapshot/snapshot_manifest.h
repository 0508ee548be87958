/// SnapshotManifest: what the manifest of a snapshot says, and the metadata of its files, read from
/// text. All of it is checked, since a job goes on from it: docs/formats/snapshot.md.
/// Thread rule: pure functions.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/optim/rule.h"
#include "tutti/ps/partition/cut_part.h"
#include "tutti/ps/partition/partition_counts.h"
#include "tutti/ps/spec/spec.h"
#include "tutti/store/file_facts.h"

namespace tutti::ps {

struct SnapshotManifest {
  struct Partition {
    CutPart part;
    PartitionCounts counts;
    std::string cursor;  ///< of partition 0: Cursor::to_text()
    std::vector<store::FileFacts> files;
  };

  int64_t cut = 0;
  int64_t step = 0;
  Spec spec;  ///< whose pieces have every element of every variable once
  std::vector<Partition> partitions;
};

/// The text of a manifest for its file: with the digest of all other fields.
///
/// fields  a JSON object; a digest that it has is replaced
std::string sealed_manifest(std::string_view fields);

/// Reads that text. Throws DataError naming `file`, the field, what was got and expected: for
/// another format or digest, and for values that no job can go on from.
SnapshotManifest manifest_from(std::string_view text, const std::filesystem::path& file);

/// Why its partitions are not of one moment of the job (objection_to_cut()); "": they are.
std::string objection_to(const SnapshotManifest& manifest);

/// manifest_from() of the file in the folder of a snapshot.
SnapshotManifest manifest_in(const std::filesystem::path& cut);

/// A range of a variable, as the metadata of a partition's file has it.
struct SavedRange {
  int variable = 0;
  int64_t begin = 0;
  int64_t end = 0;
  int64_t version = 0;
  optim::StepScalars scalars;
};

/// What a file has: ranges of variables, or rows of an embedding table of a partition.
struct SavedContent {
  int partition = 0;
  int table = -1;  ///< -1: ranges
  std::vector<SavedRange> ranges;
};

/// Reads the metadata of `file`. Throws DataError as manifest_from().
SavedContent content_from(std::string_view metadata, const Spec& spec,
                          const std::filesystem::path& file);

}  // namespace tutti::ps
