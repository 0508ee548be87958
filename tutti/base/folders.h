/// What is in folders, for whoever decides by it: one that cannot be looked at just now is an
/// error, never an empty one. Thread rule: any thread.
#pragma once

#include <filesystem>
#include <vector>

namespace tutti {

/// What is in `folder`, in no order; nothing where there is no such folder. Throws IoError when it
/// cannot be listed just now, UsageError when this user may not.
std::vector<std::filesystem::path> entries_of(const std::filesystem::path& folder);

/// Whether `path` is a folder; false where nothing is there. Throws as entries_of() does.
bool is_folder(const std::filesystem::path& path);

/// Whether anything is at `path`. Throws as entries_of() does.
bool is_there(const std::filesystem::path& path);

/// Where files go that nobody gave a place: the folder that TMPDIR names, or /tmp where that is
/// none (batch systems name one that they have not made, or have removed). Never throws for that.
std::filesystem::path temporary_folder();

}  // namespace tutti
