/// Names in the files of a snapshot. docs/formats/snapshot.md.
/// Thread rule: pure functions.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <string>
#include <string_view>

namespace tutti::ps::detail {

inline constexpr std::string_view kSnapshotFormat = "tutti.snapshot/2";
inline constexpr const char* kManifest = "manifest.json";
inline constexpr const char* kMetadata = "tutti.snapshot";
inline constexpr std::string_view kPartial = ".partial";

inline std::string name_of_cut(int64_t number) { return fmt::format("cut-{:06}", number); }
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
