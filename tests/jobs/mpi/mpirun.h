/// Runs rank programs of this binary under the MPI launcher.
#pragma once

#include <unistd.h>

#include <array>
#include <string>
#include <vector>

#include "tests/support/command.h"
#include "tests/support/run_ranks.h"

namespace tutti::test {

/// `size` ranks of `program` on this machine, more than it has cores too; `options` are those of
/// the launcher. All output comes back; the launcher passes an exit code on.
inline CommandResult mpirun(int size, const std::string& program,
                            const std::vector<std::string>& options = {},
                            Millis limit = Millis{100'000}) {
  std::array<char, 4096> self{};
  if (readlink("/proc/self/exe", self.data(), self.size() - 1) < 0) return {};
  std::vector<std::string> words = {TUTTI_MPIRUN, "-n", std::to_string(size)};
  words.insert(words.end(), options.begin(), options.end());
  words.emplace_back(self.data());
  return run_command(words,
                     {"TUTTI_TEST_PROGRAM=" + program, "OMPI_ALLOW_RUN_AS_ROOT=1",
                      "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1", "OMPI_MCA_rmaps_base_oversubscribe=1",
                      "OMPI_MCA_btl_base_warn_component_unused=0"},
                     limit);
}

}  // namespace tutti::test
