#include "tutti/base/file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <new>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "tutti/base/error.h"
#include "tutti/base/file_descriptor.h"

namespace tutti {
namespace {

namespace fs = std::filesystem;

using Pieces = std::span<const std::span<const std::byte>>;

[[noreturn]] void fail_write(const fs::path& path, std::string_view operation, int error_number) {
  throw WriteError(
      fmt::format("cannot write {}: {}: {}\n  an earlier file of that name is untouched",
                  path.string(), operation, errno_words(error_number)));
}

std::string cannot_read(const fs::path& path, int error_number) {
  return fmt::format("cannot read {}: {}", path.string(), errno_words(error_number));
}

// Of a file that is open: a disk, a mount or a limit, which says nothing of what is in it.
[[noreturn]] void fail_read(const fs::path& path, int error_number) {
  throw IoError(cannot_read(path, error_number) +
                "\n  what is in it may be sound: look at the disk, the mount or `ulimit -n`, then "
                "try again");
}

// What is not there is damage to whoever wants it, what may not be read a matter of rights.
[[noreturn]] void fail_open(const fs::path& path, int error_number) {
  switch (error_number) {
    case ENOENT:
    case ENOTDIR:
    case ELOOP:
    case ENXIO:  // a socket
    case ENAMETOOLONG: throw DataError(cannot_read(path, error_number));
    case EACCES:
    case EPERM: throw UsageError(cannot_read(path, error_number));
    default: fail_read(path, error_number);
  }
}

struct stat status_of(const FileDescriptor& fd, const fs::path& path) {
  struct stat status{};
  if (::fstat(fd.get(), &status) != 0) fail_read(path, errno);
  return status;
}

// Of a file that another host has replaced, the first open may find the old one.
constexpr int kStaleTries = 3;

[[noreturn]] void fail_kind(const fs::path& path, mode_t mode) {
  throw DataError(fmt::format("cannot read {}: got a {}, expected a regular file", path.string(),
                              S_ISDIR(mode)    ? "folder"
                              : S_ISFIFO(mode) ? "pipe"
                              : S_ISSOCK(mode) ? "socket"
                                               : "device"));
}

// Gives a file's bytes in order. Read, not mapped: where the disk fails that is an error.
template <class Take>
void read_chunks(const fs::path& path, Take take) {
  constexpr size_t kReadAtOnce = 1 << 20;
  const FileDescriptor fd = open_to_read(path);
  const auto size = static_cast<size_t>(std::max<off_t>(0, status_of(fd, path).st_size));
  std::vector<char> chunk(std::clamp<size_t>(size, 1, kReadAtOnce));
  while (true) {
    const ssize_t count = ::read(fd.get(), chunk.data(), chunk.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) fail_read(path, errno);
    if (count == 0) return;
    take(std::span<const char>(chunk.data(), static_cast<size_t>(count)));
  }
}

size_t total_bytes(Pieces pieces) {
  size_t total = 0;
  for (const auto& piece : pieces) total += piece.size();
  return total;
}

constexpr size_t kBlock = kDirectAlignment;
constexpr size_t kChunk = 4 << 20;
// Bytes from which a file goes past the page cache: of 70 MB, 180 ms of a core on the way through
// it, 20 ms past it.
constexpr size_t kDirectFrom = 8 << 20;
// Hashed, or copied to the page cache, in one turn: a fraction of a millisecond of a core.
constexpr size_t kTurn = 256 << 10;

/// Writes pieces: past the page cache from where they lie, if they lie so; others by chunks into
/// which it gathers them.
class ChunkWriter {
 public:
  ChunkWriter(int fd, size_t total, const fs::path& path, Sha256* digest,
              const std::function<void()>& turn)
      : fd_(fd),
        total_(total),
        path_(path),
        digest_(digest),
        turn_(turn),
        room_(std::min(total, kChunk)) {
    if (total > 0)
      buffer_.reset(static_cast<std::byte*>(
          ::operator new((room_ + kBlock - 1) / kBlock * kBlock, std::align_val_t{kBlock})));
    if (total >= kDirectFrom) direct_ = change_direct(true);
  }

  void append(std::span<const std::byte> piece) {
    while (!piece.empty()) {
      auto part = piece.first(std::min(piece.size(), room_ - used_));
      const bool as_it_lies = lies_well(part);
      if (as_it_lies) part = part.first(part.size() / kBlock * kBlock);
      if (digest_ != nullptr) hash(part);
      piece = piece.subspan(part.size());
      if (as_it_lies) {
        write(part);
        continue;
      }
      std::memcpy(buffer_.get() + used_, part.data(), part.size());
      used_ += part.size();
      if (used_ == room_) flush();
    }
  }

  void flush() {
    if (direct_ && used_ % kBlock != 0) direct_ = !change_direct(false);
    write({buffer_.get(), std::exchange(used_, 0)});
  }

 private:
  bool lies_well(std::span<const std::byte> part) const {
    return direct_ && used_ == 0 && part.size() >= kBlock &&
           reinterpret_cast<uintptr_t>(part.data()) % kBlock == 0;
  }

  void hash(std::span<const std::byte> rest) {
    while (!rest.empty()) {
      take_turn();
      const auto part = rest.first(std::min(rest.size(), kTurn));
      digest_->update(part.data(), part.size());
      rest = rest.subspan(part.size());
    }
  }

  void take_turn() const {
    if (turn_) turn_();
  }

  void write(std::span<const std::byte> rest) {
    while (!rest.empty()) {
      take_turn();
      const size_t bytes = direct_ ? rest.size() : std::min(rest.size(), kTurn);
      const ssize_t count = ::write(fd_, rest.data(), bytes);
      if (count < 0 && errno == EINTR) continue;
      if (count < 0 && errno == EINVAL && direct_) {  // larger blocks, or after a part of a chunk
        direct_ = !change_direct(false);
        continue;
      }
      if (count < 0)
        fail_write(path_, fmt::format("after {} of {} bytes", written_, total_), errno);
      rest = rest.subspan(static_cast<size_t>(count));
      written_ += static_cast<size_t>(count);
    }
  }

  // Not every file system can; then everything is as without it.
  bool change_direct(bool on) const {
    const int flags = ::fcntl(fd_, F_GETFL);
    return ::fcntl(fd_, F_SETFL, on ? flags | O_DIRECT : flags & ~O_DIRECT) == 0;
  }

  struct Free {
    void operator()(std::byte* memory) const {
      ::operator delete(memory, std::align_val_t{kBlock});
    }
  };

  int fd_;
  size_t total_;
  const fs::path& path_;
  Sha256* digest_;
  const std::function<void()>& turn_;
  size_t room_;
  std::unique_ptr<std::byte, Free> buffer_;
  size_t used_ = 0, written_ = 0;
  bool direct_ = false;
};

void write_all(int fd, Pieces pieces, const fs::path& path, Sha256* digest,
               const std::function<void()>& turn) {
  ChunkWriter writer(fd, total_bytes(pieces), path, digest, turn);
  for (const auto& piece : pieces) writer.append(piece);
  writer.flush();
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
    throw WriteError(fmt::format("{} is written, but its folder could not be synced: {}",
                                 path.string(), errno_words(errno)));
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

FileDescriptor open_to_read(const fs::path& path) {
  FileDescriptor fd;
  for (int tried = 0; !fd && tried < kStaleTries; ++tried) {
    fd = FileDescriptor(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
    if (!fd && errno != ESTALE) break;
  }
  if (!fd) fail_open(path, errno);
  const auto mode = status_of(fd, path).st_mode;
  if (!S_ISREG(mode)) fail_kind(path, mode);
  return fd;
}

MappedFile map_file(const fs::path& path) {
  const FileDescriptor fd = open_to_read(path);
  const auto size = static_cast<size_t>(status_of(fd, path).st_size);
  if (size == 0) return {};
  void* memory = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd.get(), 0);
  if (memory == MAP_FAILED) fail_read(path, errno);
  std::shared_ptr<const void> owner(
      memory, [size](const void* mapped) { ::munmap(const_cast<void*>(mapped), size); });
  return {{static_cast<const std::byte*>(memory), size}, std::move(owner)};
}

std::string read_file(const fs::path& path) {
  std::string all;
  read_chunks(path, [&](std::span<const char> chunk) { all.append(chunk.begin(), chunk.end()); });
  return all;
}

void open_folder_anew(const fs::path& folder) {
  const FileDescriptor open(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
}

FileDigest digest_of_file(const fs::path& path) {
  FileDigest digest;
  Sha256 sha;
  read_chunks(path, [&](std::span<const char> chunk) {
    sha.update(chunk.data(), chunk.size());
    digest.bytes += std::ssize(chunk);
  });
  digest.sha256 = sha.hex();
  return digest;
}

void write_file_atomically(const fs::path& path, Pieces pieces, Sha256* digest,
                           const std::function<void()>& turn) {
  if (is_stream(path)) {
    const FileDescriptor fd(::open(path.c_str(), O_WRONLY | O_CLOEXEC));
    if (!fd) fail_write(path, "open", errno);
    write_all(fd.get(), pieces, path, digest, turn);
    return;
  }
  const fs::path target = resolve_links(path);
  NewFile file(target);
  write_all(file.fd(), pieces, path, digest, turn);
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
