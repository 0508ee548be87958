/// `tutti bench` and the lines that it writes.
#pragma once

#include <string>
#include <vector>

#include "tests/jobs/command_line/json_lines.h"
#include "tests/support/command.h"
#include "tests/support/temp_folder.h"

namespace tutti::test {

using Words = std::vector<std::string>;

inline CommandResult bench(Words words, const std::vector<std::string>& environment = {}) {
  words.insert(words.begin(), {TUTTI_PROGRAM, "bench"});
  return run_command(words, environment, Millis{280'000});
}

}  // namespace tutti::test
