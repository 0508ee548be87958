#include "tutti/store/numbered_folder.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <limits>
#include <map>
#include <system_error>

#include "tutti/base/error.h"
#include "tutti/base/file.h"
#include "tutti/base/file_descriptor.h"
#include "tutti/base/folders.h"
#include "tutti/base/typed.h"

namespace tutti::store {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPartial = ".partial";

void sync_folder(const fs::path& folder) {
  const FileDescriptor open(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (open) ::fsync(open.get());
}

}  // namespace

std::string NumberedFolder::name(int64_t number) const {
  return fmt::format("{}{:0{}}", naming_.prefix, number, naming_.digits);
}

std::optional<int64_t> NumberedFolder::number_of(std::string_view name) const {
  if (!name.starts_with(naming_.prefix)) return {};
  const auto number = number_in<int64_t>(name.substr(naming_.prefix.size()));
  if (!number || *number < 0 || *number == std::numeric_limits<int64_t>::max()) return {};
  return number;
}

fs::path NumberedFolder::unfinished(std::string_view name) const {
  return folder_ / fmt::format("{}{}{}", naming_.unfinished, name, kPartial);
}

fs::path NumberedFolder::partial(int64_t number) const { return unfinished(name(number)); }

std::vector<fs::path> NumberedFolder::all(const char* with) const {
  std::map<int64_t, fs::path> found;
  for (const fs::path& path : entries_of(folder_))
    if (const auto number = number_of(path.filename().string());
        number && is_folder(path) && (with == nullptr || is_there(path / with)))
      found[*number] = path;
  std::vector<fs::path> paths;
  for (const auto& [number, path] : found) paths.push_back(path);
  return paths;
}

bool NumberedFolder::is_of(int64_t lock) const noexcept {
  try {
    return FolderLock::number_in(folder_, naming_.lock) == lock;
  } catch (const std::exception&) {  // of the file system, too
    return false;
  }
}

fs::path NumberedFolder::begin(int64_t number) const {
  fs::path made = partial(number);
  std::error_code failure;
  fs::create_directories(made, failure);
  if (failure) throw Error(fmt::format("{}: {}", made.string(), failure.message()));
  return made;
}

void NumberedFolder::finish(int64_t number, std::string_view manifest,
                            const std::function<void()>& last_look) const {
  const fs::path made = partial(number);
  write_file_atomically(made / kManifest, manifest);
  sync_folder(made);
  last_look();
  std::error_code failure;
  fs::remove_all(whole(number), failure);
  fs::rename(made, whole(number), failure);
  if (failure)
    throw Error(fmt::format("{} cannot become {}: {}", made.string(), whole(number).string(),
                            failure.message()));
  sync_folder(folder_);
}

void NumberedFolder::give_up(int64_t number, int64_t lock) const noexcept {
  std::error_code ignored;
  if (is_of(lock)) fs::remove_all(partial(number), ignored);
}

void NumberedFolder::remove_unfinished(int64_t but_of) const noexcept {
  const fs::path stays = partial(but_of).filename();
  const std::string begin = fmt::format("{}{}", naming_.unfinished, naming_.prefix);
  std::error_code failure;
  for (fs::directory_iterator at(folder_, failure), end; !failure && at != end;
       at.increment(failure)) {
    std::error_code ignored;
    const std::string name = at->path().filename();
    if (name.starts_with(begin) && name.ends_with(kPartial) && name != stays)
      fs::remove_all(at->path(), ignored);
  }
}

void NumberedFolder::keep(const std::vector<fs::path>& these,
                          const std::vector<fs::path>& all) const {
  for (const fs::path& path : all) {
    if (std::ranges::find(these, path) != these.end()) continue;
    // First it is none any more, then it goes: a reader sees all of one or none.
    const fs::path going = unfinished(path.filename().string());
    std::error_code failure;
    fs::rename(path, going, failure);
    if (!failure) fs::remove_all(going, failure);
  }
}

std::vector<fs::path> newest_of(const std::vector<fs::path>& all, int64_t count) {
  return {all.end() - std::min(std::ssize(all), count), all.end()};
}

}  // namespace tutti::store
