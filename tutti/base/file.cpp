#include "tutti/base/file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <random>
#include <string>
#include <utility>

#include "tutti/base/error.h"
#include "tutti/base/file_descriptor.h"

namespace tutti {
namespace {

namespace fs = std::filesystem;

using Pieces = std::span<const std::span<const std::byte>>;

[[noreturn]] void fail_write(const fs::path& path, std::string_view operation, int error_number) {
  throw Error(fmt::format("cannot write {}: {}: {}\n  an earlier file of that name is untouched",
                          path.string(), operation, errno_words(error_number)));
}

size_t total_bytes(Pieces pieces) {
  size_t total = 0;
  for (const auto& piece : pieces) total += piece.size();
  return total;
}

void write_all(int fd, Pieces pieces, const fs::path& path) {
  // Linux moves at most 0x7ffff000 bytes a call; asking for less keeps each result exact.
  constexpr size_t kMostPerCall = size_t{1} << 30;
  const size_t total = total_bytes(pieces);
  size_t written = 0;
  for (auto piece : pieces) {
    while (!piece.empty()) {
      const ssize_t count = ::write(fd, piece.data(), std::min(piece.size(), kMostPerCall));
      if (count < 0 && errno == EINTR) continue;
      if (count < 0) fail_write(path, fmt::format("after {} of {} bytes", written, total), errno);
      piece = piece.subspan(static_cast<size_t>(count));
      written += static_cast<size_t>(count);
    }
  }
}

fs::path folder_of(const fs::path& path) {
  return path.has_parent_path() ? path.parent_path() : fs::path(".");
}

// Short, and without the file's own name: that may be as long as the file system allows.
fs::path temporary_name(const fs::path& path) {
  std::random_device random;  // a pid may come back, in a container soon
  return folder_of(path) / fmt::format(".tutti-{:08x}{:08x}.tmp", random(), random());
}

// A file that has no place in the folder yet, or has one under a temporary name that goes away
// with this object unless publish() was reached.
class NewFile {
 public:
  explicit NewFile(const fs::path& path) : path_(path), temporary_(temporary_name(path)) {
    fd_ = FileDescriptor(::open(folder_of(path).c_str(), O_TMPFILE | O_WRONLY | O_CLOEXEC, 0666));
    if (fd_) return;
    // What a file system without nameless files, or a kernel without knowledge of them, answers.
    if (errno != EOPNOTSUPP && errno != EISDIR && errno != EINVAL)
      fail_write(path, "making a file in " + folder_of(path).string(), errno);
    fd_ = FileDescriptor(::open(temporary_.c_str(), O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0666));
    if (!fd_) fail_write(path, "making " + temporary_.string(), errno);
    named_ = true;
  }
  NewFile(const NewFile&) = delete;
  NewFile& operator=(const NewFile&) = delete;
  ~NewFile() {
    if (named_) ::unlink(temporary_.c_str());
  }

  int fd() const noexcept { return fd_.get(); }

  void publish() {
    if (::fsync(fd_.get()) != 0) fail_write(path_, "fsync", errno);
    if (!named_) {
      const std::string self = fmt::format("/proc/self/fd/{}", fd_.get());
      if (::linkat(AT_FDCWD, self.c_str(), AT_FDCWD, temporary_.c_str(), AT_SYMLINK_FOLLOW) != 0)
        fail_write(path_, "linking " + temporary_.string(), errno);
      named_ = true;
    }
    if (::rename(temporary_.c_str(), path_.c_str()) != 0) fail_write(path_, "rename", errno);
    named_ = false;
  }

 private:
  fs::path path_;
  fs::path temporary_;
  FileDescriptor fd_;
  bool named_ = false;
};

void sync_folder(const fs::path& path) {
  const FileDescriptor folder(::open(folder_of(path).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  // Some file systems cannot sync a folder (EINVAL): there the rename is all that there is.
  if (folder && ::fsync(folder.get()) != 0 && errno != EINVAL && errno != EROFS)
    throw Error(fmt::format("{} is written, but its folder could not be synced: {}", path.string(),
                            errno_words(errno)));
}

// The file that `path` stands for, links followed; its last part need not be there.
fs::path resolve_links(const fs::path& path) {
  std::error_code error;
  fs::path target = fs::is_symlink(path, error) ? fs::weakly_canonical(path, error) : path;
  return error ? path : target;
}

// Devices and pipes are no files to replace: renaming over /dev/null would break the machine.
bool is_stream(const fs::path& path) {
  std::error_code error;
  const auto status = fs::status(path, error);
  return fs::exists(status) && !fs::is_regular_file(status) && !fs::is_directory(status);
}

}  // namespace

MappedFile map_file(const fs::path& path) {
  const auto fail = [&](int error_number) {
    throw DataError(fmt::format("cannot read {}: {}", path.string(), errno_words(error_number)));
  };
  const FileDescriptor fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!fd) fail(errno);
  struct stat status{};
  if (::fstat(fd.get(), &status) != 0) fail(errno);
  if (!S_ISREG(status.st_mode))
    throw DataError(fmt::format("cannot read {}: got a {}, expected a regular file", path.string(),
                                S_ISDIR(status.st_mode) ? "folder" : "device or pipe"));
  const auto size = static_cast<size_t>(status.st_size);
  if (size == 0) return {};
  void* memory = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd.get(), 0);
  if (memory == MAP_FAILED) fail(errno);
  std::shared_ptr<const void> owner(
      memory, [size](const void* mapped) { ::munmap(const_cast<void*>(mapped), size); });
  return {{static_cast<const std::byte*>(memory), size}, std::move(owner)};
}

void write_file_atomically(const fs::path& path, Pieces pieces) {
  if (is_stream(path)) {
    const FileDescriptor fd(::open(path.c_str(), O_WRONLY | O_CLOEXEC));
    if (!fd) fail_write(path, "open", errno);
    write_all(fd.get(), pieces, path);
    return;
  }
  const fs::path target = resolve_links(path);
  NewFile file(target);
  write_all(file.fd(), pieces, path);
  file.publish();
  sync_folder(target);
}

void write_file_atomically(const fs::path& path, std::string_view text) {
  const std::array pieces{std::as_bytes(std::span(text))};
  write_file_atomically(path, pieces);
}

void require_writable(const fs::path& path, std::string_view what) {
  const auto fail = [&](const std::string& why) {
    throw UsageError(fmt::format("{} {}: cannot be written: {}", what, path.string(), why));
  };
  if (path.empty()) fail("the name is empty");
  std::error_code error;
  if (fs::is_directory(path, error)) fail("it is a folder; name a file in it");
  if (is_stream(path)) {
    if (::access(path.c_str(), W_OK) != 0) fail(errno_words(errno));
    return;
  }
  const fs::path target = resolve_links(path);
  const fs::path folder = folder_of(target);
  if (!fs::is_directory(folder, error))
    fail(fmt::format("there is no folder {}; make it first", folder.string()));
  // A file without a name says nothing about the names that this file system takes.
  for (const fs::path& name : {target, temporary_name(target)}) {
    struct stat status{};
    if (::lstat(name.c_str(), &status) != 0 && errno != ENOENT) fail(errno_words(errno));
  }
  try {
    const NewFile trial(target);
  } catch (const Error& error) {
    fail(error.what());
  }
}

}  // namespace tutti
