/// Runs rank programs of this binary under the MPI launcher.
#pragma once

#include <string>
#include <vector>

#include "tests/support/command.h"
#include "tests/support/mpirun.h"
#include "tests/support/run_ranks.h"

namespace tutti::test {

/// `size` ranks of a command on this machine, more than it has cores too; `options` are those of
/// the launcher. All output comes back; the launcher passes an exit code on.
inline CommandResult mpirun_command(int size, const std::vector<std::string>& command,
                                    const std::vector<std::string>& options = {},
                                    const std::string& environment = "TUTTI_TEST_PROGRAM=",
                                    Millis limit = Millis{100'000}) {
  std::vector<std::string> words = {TUTTI_MPIRUN};
  words.insert(words.end(), options.begin(), options.end());
  words.insert(words.end(), {"-n", std::to_string(size)});
  words.insert(words.end(), command.begin(), command.end());
  std::vector<std::string> all = launcher_settings();
  all.push_back(environment);
  return run_command(words, all, limit);
}

/// The same of a rank program of this binary.
inline CommandResult mpirun(int size, const std::string& program,
                            const std::vector<std::string>& options = {}) {
  return mpirun_command(size, {own_path()}, options, "TUTTI_TEST_PROGRAM=" + program);
}

}  // namespace tutti::test
