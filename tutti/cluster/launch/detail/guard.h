/// The end of a whole process tree, by the launcher or, when that was killed, by its guard.
///
/// Every process of a job carries `TUTTI_LAUNCH=<id>` in its environment and most stay in their
/// worker's process group; docs/design/launcher.md says how the rest are found. Thread rule: the
/// thread that launches.
#pragma once

#include <sys/types.h>

#include <span>
#include <string>
#include <vector>

#include "tutti/base/deadline.h"
#include "tutti/base/file_descriptor.h"

namespace tutti::detail {

/// Kills (SIGKILL) every process whose environment has `launch_entry` ("TUTTI_LAUNCH=<id>"), and,
/// when `orphans` is set, every child of this process that is not in `spare`; these are reaped too.
/// Returns how many were still there. Async-signal-safe.
int kill_members(const char* launch_entry, bool orphans, std::span<const pid_t> spare) noexcept;

/// The children of this process.
std::vector<pid_t> children_of_this_process();

/// Reaps the children of this process that have ended and are not in `spare`.
void reap_all_but(std::span<const pid_t> spare) noexcept;

/// Whether a process is stopped by a signal (not by a debugger).
bool is_stopped(pid_t pid) noexcept;

/// What was killed takes a moment to go: longest where hundreds of GB are given back, or a core is
/// dumped.
inline constexpr Millis kReaping{60'000};

/// Waits for the end of a child that was told to end, and reaps it; true at once when there is no
/// such child. False: it has not gone by `deadline` (a disk that does not answer, a debugger).
bool reap_until(pid_t child, const Deadline& deadline) noexcept;

/// A process that watches the launcher and, should it die before dismiss(), ends the job's
/// processes. It is forked without exec and makes system calls only, so that it may be started in a
/// process with threads.
class Guard {
 public:
  static constexpr int kMaxWorkers = 1024;  // ranks of a segment
  static constexpr Millis kDismissal{5'000};

  explicit Guard(const std::string& launch_entry);
  Guard(const Guard&) = delete;
  ~Guard() { dismiss(); }

  /// A worker whose process group must end, instead of one that has ended.
  void add(pid_t worker, pid_t instead_of = 0) noexcept;
  /// The job has ended: the guard is killed, stopped or not, and reaped. Takes kDismissal at most.
  void dismiss() noexcept;
  pid_t pid() const noexcept { return pid_; }

 private:
  struct Shared;
  Shared* shared_ = nullptr;  // a page that both processes map
  FileDescriptor lifeline_;
  pid_t pid_ = -1;
};

}  // namespace tutti::detail
