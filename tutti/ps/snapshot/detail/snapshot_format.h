/// Names of snapshots, and in their files. docs/formats/snapshot.md.
/// Thread rule: pure functions.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <utility>

#include "tutti/store/numbered_folder.h"

namespace tutti::ps::detail {

inline constexpr std::string_view kSnapshotFormat = "tutti.snapshot/2";
inline constexpr const char* kMetadata = "tutti.snapshot";

/// The folder of a job's snapshots. Its lock has a name of its own: checkpoints may be in it, too.
inline store::NumberedFolder cuts_in(std::filesystem::path folder) {
  return {std::move(folder), {.prefix = "cut-", .digits = 6, .lock = "snapshots.lock"}};
}
inline std::string name_of_cut(int64_t number) { return cuts_in({}).name(number); }
inline std::string name_of_partition(int partition) {
  return fmt::format("partition-{}.safetensors", partition);
}
inline std::string name_of_rows(int partition, int table, int64_t chunk) {
  return fmt::format("partition-{}.table-{}.rows-{}.safetensors", partition, table, chunk);
}
/// Elements of a variable; those of an optimizer state with its name behind a dot.
inline std::string name_of_range(std::string_view variable, int64_t begin, int64_t end,
                                 std::string_view state = "") {
  return fmt::format("{}[{}:{}]{}{}", variable, begin, end, state.empty() ? "" : ".", state);
}

}  // namespace tutti::ps::detail
