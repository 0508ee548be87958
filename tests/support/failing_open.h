/// A disk, a mount or a limit that fails or hangs, as open(2) tells it. Replaces open() of the
/// whole binary.
#pragma once

#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <cstdarg>
#include <limits>
#include <mutex>
#include <string>
#include <string_view>

#include "tutti/base/deadline.h"

namespace tutti::test {

/// What befalls files whose path ends in `name` when they are opened, while it lives. One at a
/// time.
class OpenHook {
 public:
  explicit OpenHook(std::string name) : name_(std::move(name)) { current() = this; }
  virtual ~OpenHook() { current() = nullptr; }
  OpenHook(const OpenHook&) = delete;

  static std::atomic<OpenHook*>& current() {
    static std::atomic<OpenHook*> one = nullptr;
    return one;
  }

  /// The errno for this path; 0: it is opened.
  int error_for(std::string_view path) { return path.ends_with(name_) ? on_open() : 0; }

 private:
  virtual int on_open() = 0;

  const std::string name_;
};

/// It fails with an errno, so many times.
class FailingOpen : public OpenHook {
 public:
  FailingOpen(std::string name, int error, int times = std::numeric_limits<int>::max())
      : OpenHook(std::move(name)), error_(error), left_(times) {}

  int failed() const { return failed_; }

 private:
  int on_open() override {
    if (left_-- <= 0) return 0;
    ++failed_;
    return error_;
  }

  const int error_;
  std::atomic<int> left_, failed_ = 0;
};

/// It hangs until this is gone.
class HangingOpen : public OpenHook {
 public:
  using OpenHook::OpenHook;
  ~HangingOpen() override {
    std::unique_lock lock(mutex_);
    released_ = true;
    changed_.notify_all();
    changed_.wait(lock, [this] { return hanging_ == 0; });
  }

  /// Whether somebody hangs by then.
  bool wait(const Deadline& deadline) {
    std::unique_lock lock(mutex_);
    return changed_.wait_until(lock, deadline.at(), [this] { return hanging_ > 0; });
  }

 private:
  int on_open() override {
    std::unique_lock lock(mutex_);
    ++hanging_;
    changed_.notify_all();
    changed_.wait(lock, [this] { return released_; });
    --hanging_;
    changed_.notify_all();
    return 0;
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  int hanging_ = 0;
  bool released_ = false;
};

}  // namespace tutti::test

extern "C" [[gnu::weak]] int open(const char* path, int flags, ...) {
  va_list more;
  va_start(more, flags);
  const bool makes = (flags & O_CREAT) != 0 || (flags & O_TMPFILE) == O_TMPFILE;
  const unsigned mode = makes ? va_arg(more, unsigned) : 0;
  va_end(more);
  if (auto* const hook = tutti::test::OpenHook::current().load())
    if (const int error = hook->error_for(path); error != 0) {
      errno = error;
      return -1;
    }
  return static_cast<int>(syscall(SYS_openat, AT_FDCWD, path, flags, mode));
}
