/// The folder of a training's checkpoints: which are in it, and by what names.
///
/// One that is being written is called .step-000000000400.partial until all of it is on disk.
/// Thread rule: each call looks at the disk as it is then; any thread.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace tutti {

/// "step-000000000400"
std::string name_of_checkpoint(int64_t step);

/// Checkpoints in `folder`, the oldest first; none when it is not there or empty. One that has lost
/// its manifest is among them. Throws IoError when it cannot be listed just now, UsageError when
/// this user may not: so do all that look for them.
std::vector<std::filesystem::path> trainings_in(const std::filesystem::path& folder);

/// Those that were set aside, since they were not whole.
std::vector<std::filesystem::path> damaged_trainings_in(const std::filesystem::path& folder);
/// Gives one that is not whole such a name, and returns it. Throws
/// std::filesystem::filesystem_error.
std::filesystem::path set_aside(const std::filesystem::path& checkpoint);

/// Whether `path` is a checkpoint itself.
bool is_training(const std::filesystem::path& path);

/// Removes what was about to be written, but for that of step `but_of`. The folder is the caller's
/// (FolderLock), and nothing else is being written.
void remove_unfinished_checkpoints(const std::filesystem::path& folder, int64_t but_of = -1);

}  // namespace tutti
