/// Runs a program and keeps what it printed.
#pragma once

#include <string>
#include <vector>

#include "tutti/base/deadline.h"

namespace tutti::test {

/// The drawings that the project brings, seen from its root.
inline constexpr const char* kDoodles = "examples/data/quickdraw";

/// The words of a line, at its blanks.
std::vector<std::string> words_of(const std::string& line);

struct CommandResult {
  int exit_code = -1;  ///< 128 + signal when a signal ended it
  std::string out;
  std::string err;
  bool timed_out = false;
};

/// Runs `words` (the program first, searched in PATH) with extra NAME=value in its environment, and
/// kills it with its process group at `limit`.
CommandResult run_command(const std::vector<std::string>& words,
                          const std::vector<std::string>& environment = {},
                          Millis limit = Millis{60'000});

}  // namespace tutti::test
