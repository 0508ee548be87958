/// A program that runs beside this one and talks over pipes: the peers of the benchmarks.
/// Thread rule: one thread.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tutti/base/deadline.h"

namespace tutti::cli {

/// Its stdin and stdout are pipes; what it writes to stderr is kept for the message of an error.
class Child {
 public:
  /// Starts it. `command` is program and arguments, searched in PATH when without '/';
  /// `environment` is NAME=value, added to ours. Throws Error when it cannot be started.
  explicit Child(std::vector<std::string> command,
                 const std::vector<std::string>& environment = {});
  /// Kills what still runs.
  ~Child();
  Child(Child&&) noexcept;

  /// Writes a line to its stdin. Throws Error when it has ended.
  void say(const std::string& line);

  /// The next line of its stdout. Throws Error, with the last it wrote to stderr, when it has
  /// ended; Timeout after `limit`.
  std::string hear(Millis limit);

  /// Waits for its end, and returns what was left of its stdout. Throws Error when it failed, with
  /// the last it wrote to stderr; Timeout after `limit`.
  std::string finish(Millis limit);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace tutti::cli
