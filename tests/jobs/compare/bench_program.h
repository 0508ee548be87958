/// tutti_bench, as a program and as commands in this process.
#pragma once

#include <string>
#include <vector>

#include "tests/jobs/command_line/bench.h"

namespace tutti::test {

inline CommandResult tutti_bench(const Words& words) {
  return run_command(Words{TUTTI_BENCH_PROGRAM} + words, {}, Millis{280'000});
}

}  // namespace tutti::test
