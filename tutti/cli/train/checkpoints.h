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
  bool is_last = false;  ///< the job wrote it at its end: weights as a safetensors file
  std::string name() const { return path.filename().string(); }
};

/// What weights_in() finds (weights_found.h): the last one is what the training has come to.
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
