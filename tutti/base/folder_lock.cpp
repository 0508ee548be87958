#include "tutti/base/folder_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <fstream>
#include <optional>
#include <random>
#include <sstream>
#include <system_error>
#include <thread>
#include <utility>

#include "tutti/base/error.h"
#include "tutti/base/file.h"
#include "tutti/base/log.h"

namespace tutti {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMostBytes = 512;  // a number, a pid and the name of a host (at most 255)
// Each is in vain only when somebody removes the file in that very moment.
constexpr int kTries = 10;
// A killed process has its locks until the kernel has taken its memory, and its last write is done.
constexpr Millis kEndingLimit{60'000};
constexpr Millis kNotSeenLimit{2'000};  // all is done by then, whoever looked just before
constexpr Millis kEndingPause{10};

// What the file of a lock says.
struct LockWords {
  int64_t number = 0;
  int64_t pid = 0;
  std::string host;
};

std::string host_name() {
  std::string name(256, '\0');
  if (gethostname(name.data(), name.size() - 1) != 0) return "?";
  return name.c_str();
}

[[noreturn]] void cannot_look_at(const fs::path& path, int error_number) {
  throw IoError(fmt::format("cannot look at {}: {}", path.string(), errno_words(error_number)));
}

// None where nothing is there, or what no lock is: a link, a folder, a socket.
FileDescriptor open_to_look(const fs::path& path) {
  FileDescriptor fd;
  for (int tried = 0; !fd && tried < kTries; ++tried) {
    fd = FileDescriptor(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
    if (!fd && errno != ESTALE) break;
  }
  if (!fd && errno != ENOENT && errno != ENOTDIR && errno != ELOOP && errno != ENXIO)
    cannot_look_at(path, errno);
  struct stat status{};
  if (fd && ::fstat(fd.get(), &status) != 0) cannot_look_at(path, errno);
  return fd && S_ISREG(status.st_mode) ? std::move(fd) : FileDescriptor();
}

std::string text_in(int fd, const fs::path& path) {
  std::array<char, kMostBytes + 1> text{};
  const ssize_t count = ::pread(fd, text.data(), text.size(), 0);
  if (count < 0) cannot_look_at(path, errno);
  return {text.data(), static_cast<size_t>(count)};
}

std::optional<LockWords> parse_words(const std::string& text) {
  std::istringstream words(text);
  LockWords found;
  if (text.size() > kMostBytes || !(words >> found.number >> found.pid >> found.host)) return {};
  if (found.number <= 0 || found.pid <= 0) return {};
  return found;
}

// Whether SIGKILL has been sent, and not been taken yet.
bool has_pending_kill(int64_t pid) {
  std::ifstream file(fmt::format("/proc/{}/status", pid));
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with("SigPnd:") && !line.starts_with("ShdPnd:")) continue;
    if ((std::stoull(line.substr(7), nullptr, 16) >> (SIGKILL - 1) & 1) != 0) return true;
  }
  return false;
}

// As flock, but who has it may be a job that was just killed: its last one is waited for.
bool lock_unless_held(int fd, const fs::path& path, detail::Patience& patience) {
  for (;;) {
    if (::flock(fd, LOCK_EX | LOCK_NB) == 0) return true;
    const int failure = errno;
    const auto words = failure == EWOULDBLOCK ? parse_words(text_in(fd, path)) : std::nullopt;
    const bool waits =
        words && words->host == host_name() && patience.lasts_with(detail::lock_holder(words->pid));
    errno = failure;
    if (!waits) return false;
    std::this_thread::sleep_for(kEndingPause);
  }
}

// Whether `path` is that open file.
bool is_at(int fd, const fs::path& path) {
  struct stat own{}, there{};
  if (::fstat(fd, &own) != 0 || ::lstat(path.c_str(), &there) != 0) {
    if (errno == ENOENT || errno == ENOTDIR || errno == ESTALE) return false;
    cannot_look_at(path, errno);
  }
  return own.st_dev == there.st_dev && own.st_ino == there.st_ino;
}

}  // namespace

detail::LockHolder detail::lock_holder(int64_t pid) {
  std::ifstream file(fmt::format("/proc/{}/stat", pid));
  std::string stat;
  if (!std::getline(file, stat)) return LockHolder::is_not_seen;
  constexpr unsigned kExiting = 4;  // PF_EXITING
  std::istringstream fields(stat.substr(stat.rfind(')') + 1));
  std::string state, other;
  unsigned flags = 0;
  fields >> state;
  for (int skipped = 0; skipped < 5; ++skipped) fields >> other;
  fields >> flags;
  const bool ends =
      state == "Z" || state == "X" || (flags & kExiting) != 0 || has_pending_kill(pid);
  return ends ? LockHolder::is_ending : LockHolder::works;
}

Millis detail::patience_with(LockHolder holder) {
  switch (holder) {
    case LockHolder::works: return Millis{0};
    case LockHolder::is_ending: return kEndingLimit;
    case LockHolder::is_not_seen: return kNotSeenLimit;
  }
  return Millis{0};
}

bool detail::Patience::lasts_with(const LockHolder& holder) {
  if (!any_) return false;
  if (seen_ != holder) deadline_ = Deadline(patience_with(holder));
  seen_ = holder;
  return !deadline_.passed();
}

FolderLock::FolderLock(fs::path folder, std::string what, const std::string& file)
    : folder_(std::move(folder)),
      what_(std::move(what)),
      path_(folder_ / file),
      number_(static_cast<int64_t>(std::random_device{}()) + 1),
      held_(take(detail::Patience::usual())) {}

int64_t FolderLock::number_in(const fs::path& folder, const std::string& file) {
  open_folder_anew(fs::absolute(folder).parent_path());
  open_folder_anew(folder);
  const FileDescriptor fd = open_to_look(folder / file);
  const auto words = fd ? parse_words(text_in(fd.get(), folder / file)) : std::nullopt;
  return words ? words->number : 0;
}

bool FolderLock::keep() {
  if (is_at(held_.get(), path_)) return false;
  held_ = take(detail::Patience::none());
  log(LogLevel::warning,
      "{} {}: somebody has removed it, or its lock, under this job; it is made again: what was in "
      "it before is not in it now",
      what_, folder_.string());
  return true;
}

// Opened without a look at what a link leads to, and not touched: it may be anybody's.
FileDescriptor FolderLock::open_file() const {
  const auto fails = [&](const std::string& why) {
    return UsageError(fmt::format("{} {}: {}", what_, folder_.string(), why));
  };
  std::error_code failure;
  fs::create_directories(folder_, failure);
  if (failure) throw fails("the folder cannot be made: " + failure.message());
  FileDescriptor fd(
      ::open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0644));
  if (!fd && errno == ENOENT) return fd;  // the folder was removed
  if (!fd && errno == ELOOP)
    throw fails(fmt::format("{} is a symbolic link, which the lock of a job never is: remove it",
                            path_.string()));
  if (!fd) throw fails(fmt::format("{}: {}", path_.string(), errno_words(errno)));
  struct stat status{};
  if (::fstat(fd.get(), &status) != 0)
    throw fails(fmt::format("{}: {}", path_.string(), errno_words(errno)));
  if (!S_ISREG(status.st_mode) || status.st_nlink > 1)
    throw fails(fmt::format("{} is {}, which the lock of a job never is: remove it", path_.string(),
                            S_ISREG(status.st_mode) ? "a file of several names" : "no file"));
  return fd;
}

FileDescriptor FolderLock::take(detail::Patience patience) const {
  const auto fails = [&](const std::string& why) {
    return UsageError(fmt::format("{} {}: {}", what_, folder_.string(), why));
  };
  for (int i = 0; i < kTries; ++i) {
    FileDescriptor fd = open_file();
    if (!fd) continue;
    const bool locked = lock_unless_held(fd.get(), path_, patience);
    if (!locked && errno != EWOULDBLOCK)
      throw fails(fmt::format("{} cannot be locked: {}", path_.string(), errno_words(errno)));
    const std::string text = text_in(fd.get(), path_);
    const auto words = parse_words(text);
    if (!locked)
      throw fails(fmt::format(
          "another job writes there: {}; give this one a folder of its own, or wait for the end "
          "of that",
          words ? fmt::format("process {} on {}", words->pid, words->host) : "one that begins"));
    if (!is_at(fd.get(), path_)) continue;
    if (!words && !text.empty())
      throw fails(fmt::format("{} is not the lock of a job, but a file of somebody else's: move it",
                              path_.string()));
    const std::string own = fmt::format("{} {} {}\n", number_, getpid(), host_name());
    if (::pwrite(fd.get(), own.data(), own.size(), 0) != std::ssize(own) ||
        ::ftruncate(fd.get(), std::ssize(own)) != 0 ||
        ::fsync(fd.get()) != 0)  // other hosts look at it while it stays open
      throw fails(fmt::format("{}: {}", path_.string(), errno_words(errno)));
    return fd;
  }
  throw fails(fmt::format("{} is removed again and again", path_.string()));
}

}  // namespace tutti
