/// FileDescriptor: an open descriptor with one owner, closed when that goes.
/// Thread rule: as a unique_ptr, one thread at a time.
#pragma once

#include <unistd.h>

#include <utility>

namespace tutti {

/// Moves, does not copy. Made of a number that a system call returned; a failed call's -1 is
/// "none".
class FileDescriptor {
 public:
  /// None.
  FileDescriptor() = default;
  /// Takes over `number`, which may be -1: none.
  explicit FileDescriptor(int number) noexcept : number_(number) {}
  FileDescriptor(FileDescriptor&& other) noexcept : number_(other.release()) {}
  FileDescriptor& operator=(FileDescriptor&& other) noexcept {
    reset(other.release());
    return *this;
  }
  ~FileDescriptor() { reset(); }

  /// The number for system calls; -1 when none. It stays this object's.
  int get() const noexcept { return number_; }
  explicit operator bool() const noexcept { return number_ >= 0; }

  /// Gives the number away; the caller closes it.
  int release() noexcept { return std::exchange(number_, -1); }

  /// Closes, and takes over `number`.
  void reset(int number = -1) noexcept {
    const int old = std::exchange(number_, number);
    if (old >= 0) ::close(old);
  }

 private:
  int number_ = -1;
};

}  // namespace tutti
