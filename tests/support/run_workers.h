/// Runs rank programs as workers of the launcher: a process of its own launches this test binary.
#pragma once

#include <string>
#include <vector>

#include "tests/support/run_ranks.h"

namespace tutti::test {

/// How the launching process ended. Its log holds the workers' lines ("[1] ..."), the launcher's
/// own
/// ("worker 1 pid 123"), failure_report(), "root worker R", and "LEFT: ..." when launch() left a
/// descriptor or a child behind. `arguments` are the program's; `kill` is for the launching
/// process, whose rank is 0 there; `limit` is for all of it.
RankOutcome run_workers(int workers, const std::string& program,
                        const std::vector<std::string>& arguments = {}, const KillPlan& kill = {},
                        bool end_on_failure = true, Millis limit = Millis{60'000});

/// What follows `mark` in each line of `log` that holds it.
std::vector<std::string> lines_after(const std::string& log, const std::string& mark);

}  // namespace tutti::test
