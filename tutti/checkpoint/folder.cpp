#include "tutti/checkpoint/folder.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <system_error>

#include "tutti/base/folders.h"
#include "tutti/checkpoint/detail/names.h"

namespace tutti {

namespace fs = std::filesystem;

namespace {

constexpr const char* kSetAside = "damaged-step-";

bool is_folder_named(const fs::path& path, std::string_view begin) {
  const fs::path name = path.has_filename() ? path.filename() : path.parent_path().filename();
  return name.string().starts_with(begin) && is_folder(path);
}

std::vector<fs::path> folders_in(const fs::path& folder, std::string_view begin) {
  std::vector<fs::path> found = entries_of(folder);
  std::erase_if(found, [&](const fs::path& path) { return !is_folder_named(path, begin); });
  std::ranges::sort(found);
  return found;
}

}  // namespace

std::string name_of_checkpoint(int64_t step) { return fmt::format("step-{:012}", step); }

bool is_training(const fs::path& path) { return is_folder_named(path, "step-"); }

std::vector<fs::path> trainings_in(const fs::path& folder) { return folders_in(folder, "step-"); }

std::vector<fs::path> damaged_trainings_in(const fs::path& folder) {
  return folders_in(folder, kSetAside);
}

fs::path set_aside(const fs::path& checkpoint) {
  const fs::path aside = checkpoint.parent_path() / ("damaged-" + checkpoint.filename().string());
  fs::path free = aside;
  for (int number = 2; fs::exists(free); ++number)
    free = fmt::format("{}.{}", aside.string(), number);
  fs::rename(checkpoint, free);
  return free;
}

fs::path detail::partial_folder(const fs::path& folder, int64_t step) {
  return folder / ("." + name_of_checkpoint(step) + kPartial);
}

void remove_unfinished_checkpoints(const fs::path& folder, int64_t but_of) {
  const fs::path stays = detail::partial_folder(folder, but_of).filename();
  std::error_code failure;
  for (fs::directory_iterator at(folder, failure), end; !failure && at != end;
       at.increment(failure)) {
    std::error_code ignored;
    const fs::path name = at->path().filename();
    if (name.string().starts_with(".step-") && name != stays) fs::remove_all(at->path(), ignored);
  }
}

}  // namespace tutti
