/// Names in checkpoints, shared by those who write, check and read them; not for users.
/// docs/formats/checkpoint.md. Thread rule: constants and pure functions.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <string>
#include <string_view>

namespace tutti::detail {

inline constexpr const char* kCheckpointFormat = "tutti.checkpoint.2";
inline constexpr const char* kCheckpointFormat1 = "tutti.checkpoint.1";  ///< is read, not written

// Tensors: what they are of stands before their names.
inline constexpr const char* kParameters = "parameters/";
inline constexpr const char* kOptimizer = "optimizer/";
inline constexpr const char* kScalars = "optimizer/scalars";
inline constexpr const char* kTables = "tables/";
inline constexpr const char* kHistoryRows = "history";
inline constexpr const char* kKeptParameters = "kept/parameters/";
inline constexpr const char* kAverage = "average/";  ///< of the weights of all steps so far

/// Of replica `rank`: its own buffers, since batch statistics differ; or those that a callback
/// remembers.
inline constexpr const char* kBuffers = "buffers";
inline constexpr const char* kKeptBuffers = "kept/buffers";
inline std::string buffer_name(int rank, std::string_view name, std::string_view which = kBuffers) {
  return fmt::format("{}/{}/{}", which, rank, name);
}
/// What replica `rank` has added up in the epoch that goes on.
inline constexpr const char* kTotals = "totals";
inline std::string totals_name(int rank) { return fmt::format("{}/{}", kTotals, rank); }
/// What compression keeps of replica `rank`.
inline constexpr const char* kKeptBack = "compression";
inline std::string kept_back_name(int rank, std::string_view name) {
  return fmt::format("{}/{}/{}", kKeptBack, rank, name);
}
/// ReplicaContext::generator() of replica `rank`.
inline constexpr const char* kReplicaGenerators = "generator/replica";
inline std::string replica_generator_name(int rank) {
  return fmt::format("{}/{}", kReplicaGenerators, rank);
}
/// What operators on the device of replica `rank` draw from, where they have drawn.
inline constexpr const char* kDeviceGenerators = "generator/device";
inline std::string device_generator_name(int rank) {
  return fmt::format("{}/{}", kDeviceGenerators, rank);
}
/// Of a loop of one's own: a tensor of all replicas, and one of replica `rank` alone.
inline constexpr const char* kModule = "module";  ///< in CheckpointManifest::loop
inline constexpr const char* kValues = "values/";
inline constexpr const char* kOwn = "own";
inline std::string own_name(int rank, std::string_view name) {
  return fmt::format("{}/{}/{}", kOwn, rank, name);
}
/// The default generator of a worker's process.
inline constexpr const char* kGenerators = "generator";
inline std::string generator_name(int worker) { return fmt::format("{}/{}", kGenerators, worker); }

inline std::string part_file(int worker, int workers) {
  return fmt::format("part-{}-of-{}.safetensors", worker, workers);
}

}  // namespace tutti::detail
