/// A disk, a mount or a limit that fails, as open(2) tells it. Replaces open() of the whole binary:
/// include it in one source.
#pragma once

#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdarg>
#include <limits>
#include <string>
#include <string_view>

namespace tutti::test {

/// While it lives, opening a file whose path ends in `name` fails with an errno, so many times.
/// One at a time.
class FailingOpen {
 public:
  FailingOpen(std::string name, int error, int times = std::numeric_limits<int>::max())
      : name_(std::move(name)), error_(error), left_(times) {
    current() = this;
  }
  ~FailingOpen() { current() = nullptr; }
  FailingOpen(const FailingOpen&) = delete;

  int failed() const { return failed_; }

  static std::atomic<FailingOpen*>& current() {
    static std::atomic<FailingOpen*> one = nullptr;
    return one;
  }

  /// The errno for this path; 0: it is opened.
  int error_for(std::string_view path) {
    if (!path.ends_with(name_) || left_-- <= 0) return 0;
    ++failed_;
    return error_;
  }

 private:
  const std::string name_;
  const int error_;
  std::atomic<int> left_, failed_ = 0;
};

}  // namespace tutti::test

extern "C" int open(const char* path, int flags, ...) {
  va_list more;
  va_start(more, flags);
  const bool makes = (flags & O_CREAT) != 0 || (flags & O_TMPFILE) == O_TMPFILE;
  const unsigned mode = makes ? va_arg(more, unsigned) : 0;
  va_end(more);
  if (auto* const failing = tutti::test::FailingOpen::current().load())
    if (const int error = failing->error_for(path); error != 0) {
      errno = error;
      return -1;
    }
  return static_cast<int>(syscall(SYS_openat, AT_FDCWD, path, flags, mode));
}
