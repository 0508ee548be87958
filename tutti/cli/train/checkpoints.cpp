#include "tutti/cli/train/checkpoints.h"

#include <fmt/format.h>

#include "tutti/train/model/weights_found.h"

namespace tutti::cli {
namespace {

// A file or folder that was replaced has another.
std::string stamp_of(const FoundWeights& found) {
  return fmt::format("{} {}", found.path.string(), found.written.time_since_epoch().count());
}

}  // namespace

std::vector<Checkpoint> checkpoints_in(const std::filesystem::path& place) {
  std::vector<Checkpoint> checkpoints;
  const auto found = weights_in(place);
  for (const FoundWeights& one : found)
    checkpoints.push_back(
        {.path = one.path, .stamp = stamp_of(one), .is_last = one.is_end && &one == &found.back()});
  return checkpoints;
}

std::vector<Checkpoint> CheckpointFollower::fresh() {
  std::vector<Checkpoint> all = checkpoints_in(place_);
  std::erase_if(all, [&](const Checkpoint& one) { return !given_.insert(one.stamp).second; });
  return all;
}

}  // namespace tutti::cli
