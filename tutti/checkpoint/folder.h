/// The folder of a training's checkpoints: which are in it, and by what names.
///
/// One that is being written is called .step-000000000400.partial until all of it is on disk.
/// Thread rule: each call looks at the disk as it is then; any thread.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "tutti/store/numbered_folder.h"

namespace tutti {

/// The folder itself: made, listed and written to as NumberedFolder says.
store::NumberedFolder checkpoint_folder(std::filesystem::path folder);

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

/// Whether `path` is a checkpoint itself, perhaps under a name that somebody has given it.
bool is_training(const std::filesystem::path& path);

}  // namespace tutti
