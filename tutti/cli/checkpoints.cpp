#include "tutti/cli/checkpoints.h"

#include <fmt/format.h>

#include <system_error>

namespace tutti::cli {
namespace {

constexpr const char* kWeightsFile = "model.safetensors";

void add_weights(const std::filesystem::path& path, std::vector<Checkpoint>& found) {
  std::error_code failure;
  const auto time = std::filesystem::last_write_time(path, failure);
  if (failure) return;
  const auto bytes = std::filesystem::file_size(path, failure);
  if (failure) return;
  found.push_back(
      {.path = path,
       .stamp = fmt::format("{} {} {}", path.string(), bytes, time.time_since_epoch().count()),
       .is_last = true});
}

}  // namespace

std::vector<Checkpoint> checkpoints_in(const std::filesystem::path& place) {
  std::vector<Checkpoint> found;
  std::error_code failure;
  if (std::filesystem::is_directory(place, failure))
    add_weights(place / kWeightsFile, found);
  else
    add_weights(place, found);
  return found;
}

std::vector<Checkpoint> CheckpointFollower::fresh() {
  std::vector<Checkpoint> all = checkpoints_in(place_);
  std::erase_if(all, [&](const Checkpoint& one) { return !given_.insert(one.stamp).second; });
  return all;
}

}  // namespace tutti::cli
