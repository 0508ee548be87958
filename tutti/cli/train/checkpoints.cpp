#include "tutti/cli/train/checkpoints.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <system_error>

#include "tutti/checkpoint/checkpoint.h"
#include "tutti/checkpoint/folder.h"
#include "tutti/ps/snapshot/snapshot.h"

namespace tutti::cli {
namespace {

constexpr const char* kWeightsFile = "model.safetensors";

// A file or folder that was replaced has another.
std::string stamp_of(const std::filesystem::path& path, std::filesystem::file_time_type time) {
  return fmt::format("{} {}", path.string(), time.time_since_epoch().count());
}

void add_weights(const std::filesystem::path& path, std::vector<Checkpoint>& found) {
  std::error_code failure;
  const auto time = std::filesystem::last_write_time(path, failure);
  if (failure) return;
  found.push_back({.path = path, .stamp = stamp_of(path, time), .is_last = true});
}

}  // namespace

std::vector<Checkpoint> checkpoints_in(const std::filesystem::path& place) {
  std::vector<Checkpoint> found;
  std::error_code failure;
  if (!std::filesystem::is_directory(place, failure)) {
    add_weights(place, found);
    return found;
  }
  std::vector<std::filesystem::path> cuts = ps::snapshots_in(place);
  for (const std::filesystem::path& folder : {place, place / "checkpoints"})
    std::ranges::copy(trainings_in(folder), std::back_inserter(cuts));
  if (std::filesystem::exists(place / store::kManifest, failure)) cuts.push_back(place);
  for (const std::filesystem::path& cut : cuts) {
    const auto time = std::filesystem::last_write_time(cut / store::kManifest, failure);
    if (!failure) found.push_back({.path = cut, .stamp = stamp_of(cut, time)});
  }
  add_weights(place / kWeightsFile, found);
  return found;
}

std::vector<Checkpoint> CheckpointFollower::fresh() {
  std::vector<Checkpoint> all = checkpoints_in(place_);
  std::erase_if(all, [&](const Checkpoint& one) { return !given_.insert(one.stamp).second; });
  return all;
}

}  // namespace tutti::cli
