/// Checkpoints: what a training has written to its folder so far, for those who follow it.
/// Thread rule: one thread.
#pragma once

#include <filesystem>
#include <set>
#include <string>
#include <vector>

namespace tutti::cli {

struct Checkpoint {
  std::filesystem::path path;
  std::string stamp;     ///< name and time: another once it was replaced
  bool is_last = false;  ///< the job writes it at its end: weights as a safetensors file
  std::string name() const { return path.filename().string(); }
};

/// Complete checkpoints in `place`: snapshots of parameter servers and checkpoints of fit, the
/// oldest first, then weights; or `place` itself, a safetensors file or one of those. Empty when
/// there is none, or no such place.
std::vector<Checkpoint> checkpoints_in(const std::filesystem::path& place);

/// Those that come, each once, in their order.
class CheckpointFollower {
 public:
  explicit CheckpointFollower(std::filesystem::path place) : place_(std::move(place)) {}

  /// What is there and was not given yet, the oldest first.
  std::vector<Checkpoint> fresh();

 private:
  const std::filesystem::path place_;
  std::set<std::string> given_;
};

}  // namespace tutti::cli
