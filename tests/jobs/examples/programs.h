/// Where the examples and the program are built; jobs of them that are cut off.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <filesystem>
#include <string>

#include "tests/support/command.h"

namespace tutti::test {

inline const std::filesystem::path kPrograms = TUTTI_PROGRAM_DIR;

inline std::string example(const std::string& name) { return (kPrograms / name).string(); }

/// Begins `words`, a job; once the test of bash `there` holds, `signal` goes to `to`: "-$job" is
/// all of its processes, "$job" the first. What it prints is kept in `log` meanwhile.
inline CommandResult cut_off_when(const Words& words, const std::string& there,
                                  const std::string& log, const std::string& signal = "KILL",
                                  const std::string& to = "-$job") {
  const std::string script = fmt::format(
      "set -m; \"$@\" > $LOG 2>&1 & job=$!; until {}; "
      "do kill -0 $job || {{ cat $LOG; exit 99; }}; sleep 0.02; done; kill -{} -- {}; "
      "wait $job; code=$?; cat $LOG; exit $code",
      there, signal, to);
  return run_command(Words{"bash", "-c", script, "bash"} + words, {"LOG=" + log}, Millis{100'000});
}

/// The same once `folder`, for checkpoints, has that of `step`.
inline CommandResult cut_off(const Words& words, const std::filesystem::path& folder, int64_t step,
                             const std::string& signal = "KILL", const std::string& to = "-$job") {
  return cut_off_when(words, fmt::format("[ -e {}/step-{:012} ]", folder.string(), step),
                      folder.string() + ".log", signal, to);
}

}  // namespace tutti::test
