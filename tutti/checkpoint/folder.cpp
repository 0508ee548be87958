#include "tutti/checkpoint/folder.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <utility>

#include "tutti/base/folders.h"

namespace tutti {

namespace fs = std::filesystem;

namespace {

constexpr std::string_view kBegin = "step-", kSetAside = "damaged-step-";

bool is_folder_named(const fs::path& path, std::string_view begin) {
  const fs::path name = path.has_filename() ? path.filename() : path.parent_path().filename();
  return name.string().starts_with(begin) && is_folder(path);
}

}  // namespace

store::NumberedFolder checkpoint_folder(fs::path folder) {
  return {std::move(folder), {.prefix = kBegin, .digits = 12, .unfinished = "."}};
}

std::string name_of_checkpoint(int64_t step) { return checkpoint_folder({}).name(step); }

bool is_training(const fs::path& path) { return is_folder_named(path, kBegin); }

std::vector<fs::path> trainings_in(const fs::path& folder) {
  return checkpoint_folder(folder).all();
}

std::vector<fs::path> damaged_trainings_in(const fs::path& folder) {
  std::vector<fs::path> found = entries_of(folder);
  std::erase_if(found, [](const fs::path& path) { return !is_folder_named(path, kSetAside); });
  std::ranges::sort(found);
  return found;
}

fs::path set_aside(const fs::path& checkpoint) {
  const fs::path aside = checkpoint.parent_path() / ("damaged-" + checkpoint.filename().string());
  fs::path free = aside;
  for (int number = 2; fs::exists(free); ++number)
    free = fmt::format("{}.{}", aside.string(), number);
  fs::rename(checkpoint, free);
  return free;
}

}  // namespace tutti
