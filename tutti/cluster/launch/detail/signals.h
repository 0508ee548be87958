/// Signals to the launcher, as bytes in a pipe that its loop polls.
/// Thread rule: one SignalPipe at a time in a process.
#pragma once

#include <signal.h>

#include <array>

#include "tutti/base/file_descriptor.h"

namespace tutti::detail {

/// While it lives, SIGINT, SIGTERM and SIGHUP go into the pipe (those that are ignored stay so).
class SignalPipe {
 public:
  SignalPipe();
  SignalPipe(const SignalPipe&) = delete;
  ~SignalPipe();

  /// Readable when one has come.
  int descriptor() const noexcept { return read_end_.get(); }
  int take() noexcept;  ///< the next signal, or 0

 private:
  static constexpr std::array kSignals = {SIGINT, SIGTERM, SIGHUP};
  FileDescriptor read_end_;
  FileDescriptor write_end_;
  std::array<struct sigaction, kSignals.size()> previous_{};
};

/// While it lives, writing to a pipe without a reader is an error and not a death, in all threads.
class IgnoresBrokenPipes {
 public:
  IgnoresBrokenPipes();  ///< for the whole process; a program that it starts is not affected
  IgnoresBrokenPipes(const IgnoresBrokenPipes&) = delete;
  ~IgnoresBrokenPipes();  ///< what was there before is there again

 private:
  struct sigaction previous_{};
};

/// While it lives, children wait to be reaped, whatever the process did with SIGCHLD before, and
/// orphans of the process's descendants become its children.
class ReapsOrphans {
 public:
  ReapsOrphans();
  ReapsOrphans(const ReapsOrphans&) = delete;
  ~ReapsOrphans();

  /// Readable when a child has ended, until take().
  int descriptor() const noexcept { return ended_.get(); }
  void take() noexcept;

 private:
  FileDescriptor ended_;  // an eventfd
  struct sigaction previous_{};
  int was_subreaper_ = 0;
};

}  // namespace tutti::detail
