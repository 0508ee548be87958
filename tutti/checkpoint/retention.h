/// Which checkpoints of a training stay. Thread rule: the thread that writes them.
#pragma once

#include <filesystem>
#include <string>

namespace tutti {

/// Which checkpoints stay: the newest, and the best by one of CheckpointManifest::values.
struct CheckpointRetention {
  int newest = 3;
  int best = 0;
  std::string monitor = {};
  bool higher_is_better = false;
};

/// Removes complete checkpoints that need not stay, the newest never; none when one whose value is
/// asked for cannot be read just now (IoError, UsageError).
void remove_old_checkpoints(const std::filesystem::path& folder,
                            const CheckpointRetention& retention);

}  // namespace tutti
