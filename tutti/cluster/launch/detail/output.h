/// What a worker prints, line by line, behind its number.
/// Thread rule: one thread.
#pragma once

#include <deque>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/base/file_descriptor.h"

namespace tutti::detail {

/// Cuts bytes into lines, as they come.
class LineSplitter {
 public:
  /// A line longer than this is cut.
  static constexpr size_t kMaxLineBytes = 1 << 20;

  /// Calls `take` with each complete line, without its end.
  void append(std::string_view bytes, const std::function<void(std::string_view)>& take);
  /// Gives out what stands there without an end of line.
  void finish(const std::function<void(std::string_view)>& take);

 private:
  std::string partial_;
};

/// The last lines of a worker, stdout and stderr together.
class LastLines {
 public:
  static constexpr size_t kKept = 10;
  void add(std::string_view line);
  std::vector<std::string> lines() const { return {lines_.begin(), lines_.end()}; }

 private:
  std::deque<std::string> lines_;
};

/// A descriptor of this process's own for output, and what its reader has not taken yet. Nothing
/// here waits for the reader, so that a launcher whose output is not read still serves its job.
class Outlet {
 public:
  /// Past this, whoever can should add no more before blocked_on() is ready.
  static constexpr size_t kMostWaiting = 256 << 10;

  /// `descriptor` stays the caller's; other processes may hold it too.
  explicit Outlet(int descriptor);

  void add(std::string_view text) { waiting_ += text; }
  /// Writes what the reader takes now. What cannot be written at all (it has gone away, the disk is
  /// full) is not the workers' matter: it is dropped.
  void write_some() noexcept;
  void drop() noexcept { waiting_.clear(); }

  bool empty() const noexcept { return waiting_.empty(); }
  bool full() const noexcept { return waiting_.size() >= kMostWaiting; }
  /// To poll for POLLOUT before write_some(); -1 when nothing waits.
  int blocked_on() const noexcept { return empty() ? -1 : target(); }

 private:
  int target() const noexcept { return own_ ? own_.get() : shared_; }

  const int shared_;
  FileDescriptor own_;  // of the same pipe or terminal, nonblocking, where there can be one
  std::string waiting_;
};

}  // namespace tutti::detail
