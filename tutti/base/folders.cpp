#include "tutti/base/folders.h"

#include <fcntl.h>
#include <fmt/format.h>

#include <cerrno>
#include <system_error>

#include "tutti/base/error.h"
#include "tutti/base/file.h"
#include "tutti/base/file_descriptor.h"

namespace tutti {
namespace {

namespace fs = std::filesystem;

bool says_it_is_not_there(int error_number) {
  return error_number == ENOENT || error_number == ENOTDIR;
}

[[noreturn]] void fail(const fs::path& path, const char* operation, int error_number) {
  const std::string what =
      fmt::format("cannot {} {}: {}", operation, path.string(), errno_words(error_number));
  if (error_number == EACCES || error_number == EPERM) throw UsageError(what);
  throw IoError(what +
                "\n  what is in it may be sound: look at the disk, the mount or `ulimit -n`, then "
                "try again");
}

fs::file_status status_of(const fs::path& path) {
  std::error_code failure;
  const fs::file_status status = fs::status(path, failure);
  if (failure && !says_it_is_not_there(failure.value())) fail(path, "look at", failure.value());
  return status;
}

}  // namespace

std::vector<fs::path> entries_of(const fs::path& folder) {
  // Opened first: so another host's new names are seen on NFS.
  const FileDescriptor open(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!open && says_it_is_not_there(errno)) return {};
  if (!open) fail(folder, "list", errno);
  std::vector<fs::path> found;
  std::error_code failure;
  fs::directory_iterator at(folder, failure);
  for (; !failure && at != fs::directory_iterator(); at.increment(failure))
    found.push_back(at->path());
  if (failure && !says_it_is_not_there(failure.value())) fail(folder, "list", failure.value());
  return found;
}

bool is_folder(const fs::path& path) { return fs::is_directory(status_of(path)); }

bool is_there(const fs::path& path) { return fs::exists(status_of(path)); }

std::filesystem::path temporary_folder() {
  std::error_code failure;
  std::filesystem::path folder = std::filesystem::temp_directory_path(failure);
  return failure ? "/tmp" : folder;
}

}  // namespace tutti
